"""Night after night: standard input, empty inputs, bad records, the report, and the label cache."""

import datetime
import gzip
import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    OUTPUT_COLUMNS,
    assert_done,
    assert_lossless,
    assert_refused,
    clean_environment,
    digest,
    finish,
    names_in,
    read_report,
    rows_in,
    run,
    run_warm,
    start,
    wait_for,
    write_labels,
)

RECORDS = b'{"id":1,"text":"I was billed twice"}\n\n{"id":2,"text":null}\r\n{"id":3,"text":"cannot log in"}'


# --- standard input --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_standard_input(out: Path, quick: list[str]) -> None:
    """`-` reads JSON Lines from a pipe; OUT is what the same bytes in a file would give."""
    assert_done(run("classify", "-", out, *quick, data=RECORDS))
    rows = pq.read_table(out).to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [row["label_status"] for row in rows] == ["ok", "empty", "ok"]
    assert read_report(out)["input"] == "-"
    source = out.parent / "in.jsonl"
    source.write_bytes(RECORDS)
    assert_done(run_warm("classify", source, out.with_name("again.parquet"), *quick))
    assert digest(out.with_name("again.parquet")) == digest(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1\x00\x00", ("standard input", "Parquet")),
        (b"\x1f\x8b\x08\x00", ("standard input", "gzip")),
        (b'{"text": "a"\n', ("standard input, line 1",)),
        (b"[\n", ("standard input, line 1", "jq")),
    ],
)
def test_standard_input_that_is_no_json_lines(data: bytes, words: tuple[str, ...], out: Path, quick: list[str]) -> None:
    """Anything else on standard input is exit 3, and called by its name."""
    assert_refused(run("classify", "-", out, *quick, data=data), 3, *words)
    assert names_in(out.parent) == set()


@pytest.mark.slow
def test_standard_input_is_resumed(out: Path, quick: list[str]) -> None:
    """A killed run on a pipe goes on where it stopped if the same bytes come again."""
    data = b"".join(json.dumps({"text": f"{n} I was billed twice"}).encode() + b"\n" for n in range(2500))
    command = ["classify", "-", out, *quick, "--window-tickets", 8]
    assert_done(run_warm(*command, data=data))
    expected = digest(out)
    journal = out.with_name(".out.parquet.journal")
    source = out.parent / "stdin"
    source.write_bytes(data)
    with source.open("rb") as file:
        process = start(*command, stdin=file)
    wait_for(lambda: process.poll() is not None or rows_in(journal) > 0)
    process.send_signal(signal.SIGKILL)
    finish(process)
    outcome = run_warm(*command, data=data)
    assert_done(outcome)
    assert "resuming" in outcome.err
    assert digest(out) == expected


# --- nothing to do ---------------------------------------------------------------------------------------------------

EMPTY: dict[str, bytes] = {
    "in.jsonl": b"",
    "in.ndjson": b"\n\r\n  \n",
    "bom.jsonl": b"\xef\xbb\xbf",
    "in.jsonl.gz": gzip.compress(b""),
    "in.jsonl.zst": pa.compress(b"", "zstd", asbytes=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EMPTY, "in.parquet", "groups.parquet"])
def test_no_tickets(name: str, tmp_path: Path, quick: list[str]) -> None:
    """An input without rows is a good night: exit 0, an OUT without rows, a report that says 0."""
    source, out = tmp_path / name, tmp_path / "out.parquet"
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("text", pa.string())], metadata={"a": "b"})
    if name in EMPTY:
        source.write_bytes(EMPTY[name])
    else:
        with pq.ParquetWriter(source, schema) as writer:
            if name == "groups.parquet":
                writer.write_table(schema.empty_table())
    assert_done(run_warm("classify", source, out, *quick))
    table = pq.read_table(out)
    assert table.num_rows == 0
    assert table.schema.names[-4:] == OUTPUT_COLUMNS
    assert read_report(out)["rows"]["read"] == 0
    assert names_in(tmp_path) == {name, "out.parquet", "out.parquet.report.json"}
    if name.endswith("parquet"):
        assert_lossless(source, out)
    if name in ("in.jsonl", "in.parquet"):
        assert_done(run_warm("classify", source, tmp_path / "out.jsonl", *quick))
        assert (tmp_path / "out.jsonl").read_bytes() == b""


# --- bad records and the report --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_report_adds_up(tmp_path: Path, quick: list[str]) -> None:
    """Labelled, truncated, empty, duplicate and quarantined records: exit 5, and each is counted once."""
    lines = [{"text": "billed twice"}, {"text": "billed twice"}, {"text": "word " * 200}, {"text": " "}, {"x": 1}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"not json\n[]\n"
    (tmp_path / "in.jsonl").write_bytes(data)
    out = tmp_path / "out.jsonl"
    environment = clean_environment(TZ="America/New_York")
    options = ["--bad-records", "quarantine"]
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    assert_done(run_warm("classify", tmp_path / "in.jsonl", out, *quick, *options, environment=environment), 5)
    after = datetime.datetime.now(datetime.UTC)
    report = read_report(out)
    rows = report["rows"]
    assert {name: rows[name] for name in ("read", "labelled", "truncated", "empty", "failed", "quarantined")} == {
        "read": 7,
        "labelled": 3,
        "truncated": 1,
        "empty": 2,
        "failed": 0,
        "quarantined": 2,
    }
    assert (rows["scored"], rows["duplicates"]) == (2, 1)
    assert sum(report["labels"].values()) == 3
    assert sum(bin["count"] for bin in report["score_histogram"]) == 3
    assert sum(bin["count"] for bin in report["margin_histogram"]) == 3
    times = [datetime.datetime.fromisoformat(report[name]) for name in ("started", "finished")]
    assert all(time.utcoffset() == datetime.timedelta(0) for time in times)
    assert before <= times[0] <= times[1] <= after
    assert all(seconds >= 0 for seconds in report["seconds"].values())
    assert len(out.read_bytes().splitlines()) == 5
    assert len(out.with_name("out.jsonl.rejects.jsonl").read_bytes().splitlines()) == 2


def test_refused_run_with_bad_records_leaves_no_rejects(tmp_path: Path, quick: list[str]) -> None:
    """A run that is refused for its OUT has not written, replaced or removed a rejects file either."""
    (tmp_path / "in.jsonl").write_bytes(b'{"text":"a"}\nbad\n')
    out, rejects = tmp_path / "out.jsonl", tmp_path / "out.jsonl.rejects.jsonl"
    out.write_bytes(b"old")
    command = ["classify", tmp_path / "in.jsonl", out, *quick, "--bad-records", "quarantine", "--no-clobber"]
    assert_refused(run(*command), 4)
    assert names_in(tmp_path) == {"in.jsonl", "out.jsonl"}
    rejects.write_bytes(b"yesterday's rejects")
    assert_refused(run(*command), 4)
    assert rejects.read_bytes() == b"yesterday's rejects"


# --- the label cache -------------------------------------------------------------------------------------------------


@pytest.fixture
def nightly(tmp_path: Path, quick: list[str], tickets: Path) -> Callable[..., dict[str, int]]:
    """A run with the cache; gives the report's rows."""

    def night(name: str, *options: object) -> dict[str, int]:
        out = tmp_path / f"{name}.parquet"
        assert_done(run_warm("classify", tickets, out, *quick, "--cache", tmp_path / "labels.sqlite", *options))
        rows: dict[str, int] = read_report(out)["rows"]
        return rows

    return night


@pytest.mark.slow
def test_second_night_scores_new_texts_only(
    nightly: Callable[..., dict[str, int]], tickets: Path, tmp_path: Path
) -> None:
    """What was scored last night comes from the cache, with the same verdicts; other labels or cuts do not use it."""
    first = nightly("monday")
    assert (first["scored"], first["cached"], first["duplicates"]) == (3, 0, 1)
    second = nightly("tuesday")
    assert (second["scored"], second["cached"]) == (0, 4)
    assert digest(tmp_path / "monday.parquet") == digest(tmp_path / "tuesday.parquet")
    table = pq.read_table(tickets)
    more = pa.table({"id": pa.array([9], pa.int64()), "text": ["something new"]})
    pq.write_table(pa.concat_tables([table, more]), tickets)
    third = nightly("wednesday")
    assert (third["scored"], third["cached"]) == (1, 4)
    labels = write_labels(tmp_path / "others.toml", "billing", "bug", "other")
    assert nightly("thursday", "--labels", labels)["cached"] == 0
    assert nightly("friday", "--max-ticket-tokens", 32)["cached"] == 0
    assert nightly("saturday")["scored"] == 0
    assert {name for name in names_in(tmp_path) if name.startswith("labels")} == {"labels.sqlite"}


@pytest.mark.slow
def test_two_nights_at_once(
    nightly: Callable[..., dict[str, int]], tickets: Path, tmp_path: Path, quick: list[str]
) -> None:
    """Two runs that share a cache file both succeed, and the next one scores nothing."""
    texts = [f"{n} I was billed twice" for n in range(300)]
    pq.write_table(pa.table({"text": texts}), tickets)
    common = [*quick, "--cache", tmp_path / "labels.sqlite", "--window-tickets", 16]
    both = [start("classify", tickets, tmp_path / f"{name}.parquet", *common) for name in ("one", "two")]
    for process in both:
        outcome = finish(process)
        assert_done(outcome)
        assert "cache" not in outcome.err.replace("from the label cache", "")
    assert pq.read_table(tmp_path / "one.parquet").equals(pq.read_table(tmp_path / "two.parquet"))
    assert nightly("third")["scored"] == 0


@pytest.mark.slow
def test_killed_run_leaves_a_usable_cache(
    nightly: Callable[..., dict[str, int]], tickets: Path, tmp_path: Path, quick: list[str]
) -> None:
    """After kill -9 with a cache, the resumed run writes what an undisturbed one without a cache does."""
    texts = [f"{n} I was billed twice" for n in range(2500)]
    pq.write_table(pa.table({"text": texts}), tickets)
    out, plain = tmp_path / "killed.parquet", tmp_path / "plain.parquet"
    command = ["classify", tickets, out, *quick, "--window-tickets", 8, "--cache", tmp_path / "labels.sqlite"]
    process = start(*command)
    journal = tmp_path / ".killed.parquet.journal"
    wait_for(lambda: process.poll() is not None or rows_in(journal) > 0)
    process.kill()
    finish(process)
    outcome = run_warm(*command)
    assert_done(outcome)
    assert "resuming" in outcome.err
    assert_done(run_warm("classify", tickets, plain, *quick, "--window-tickets", 8))
    assert digest(out) == digest(plain)
    assert nightly("next", "--window-tickets", 8)["scored"] == 0


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
        connection.execute("INSERT INTO customers VALUES ('Ada')")
    connection.close()


def same_table_name(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE labels (name TEXT)")
    connection.close()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\x01garbage" * 1000),
    "text": lambda path: path.write_text("SQLite format 4\n", encoding="utf-8"),
    "another program's database": foreign_database,
    "another program's table": same_table_name,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FOREIGN)
def test_cache_that_is_not_ours_is_left_alone(
    what: str, tickets: Path, out: Path, tmp_path: Path, quick: list[str]
) -> None:
    """A cache file of another kind is said once, not touched, and costs the night nothing but its use."""
    cache = tmp_path / "labels.sqlite"
    FOREIGN[what](cache)
    before = cache.read_bytes() if cache.is_file() else None
    outcome = run_warm("classify", tickets, out, *quick, "--cache", cache)
    assert_done(outcome)
    assert sum("label cache" in line for line in outcome.err.splitlines()) == 1
    assert (cache.read_bytes() if cache.is_file() else None) == before
    assert_lossless(tickets, out)
    assert {name for name in names_in(tmp_path) if name.startswith("labels")} == {"labels.sqlite"}


@pytest.mark.slow
def test_empty_cache_file_is_taken(tickets: Path, out: Path, tmp_path: Path, quick: list[str]) -> None:
    """A file of 0 bytes (from mktemp, say) becomes the cache."""
    cache = tmp_path / "labels.sqlite"
    cache.write_bytes(b"")
    for expected in (0, 4):
        assert_done(run_warm("classify", tickets, out, *quick, "--cache", cache))
        assert read_report(out)["rows"]["cached"] == expected
