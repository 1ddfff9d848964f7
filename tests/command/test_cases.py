"""Every shared reproduction input through the real command: exit code, OUT, other files, both streams."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    OUTPUT_COLUMNS,
    Outcome,
    assert_done,
    assert_lossless,
    assert_refused,
    chosen,
    in_parallel,
    names_in,
    read_report,
    run,
    run_warm,
    slow_but,
)

LABELS = {"billing", "bug", "login"}
Check = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Case:
    """One run: which input, which options, and what has to come of it."""

    source: str
    code: int = 0
    words: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    out: str = "out.parquet"
    rejects: bool = False
    check: Check | None = None

    @property
    def name(self) -> str:
        return "-".join([self.source.replace("/", "-"), self.out.rpartition(".")[2], *self.options])


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of an output of either format."""
    if out.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.ParquetFile(out).read().to_pylist()
        return rows
    data = gzip.decompress(out.read_bytes()) if out.suffix == ".gz" else out.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def lossless(source: Path, out: Path) -> None:
    assert_lossless(source, out)


def all_empty(source: Path, out: Path) -> None:
    assert_lossless(source, out)
    assert {row["label_status"] for row in rows_of(out)} == {"empty"}
    assert {row["label"] for row in rows_of(out)} == {None}


def renamed(source: Path, out: Path) -> None:
    assert_lossless(source, out, ["new_" + name for name in OUTPUT_COLUMNS])


def replaced(source: Path, out: Path) -> None:
    before, after = pq.ParquetFile(source).read(), pq.ParquetFile(out).read()
    assert after.schema.names == ["id", "text", "Label", *OUTPUT_COLUMNS]
    for name in ("id", "text", "Label"):
        assert after.column(name).equals(before.column(name))


def parts_joined(source: Path, out: Path) -> None:
    parts = [pq.ParquetFile(part).read() for part in sorted(source.glob("*.parquet"))]
    after = pq.ParquetFile(out).read()
    assert after.select(["id", "text"]).equals(pa.concat_tables(parts))


def parts_widened(source: Path, out: Path) -> None:
    after = pq.ParquetFile(out).read()
    assert after.schema.field("id").type == pa.int64()
    assert after.schema.field("prio").type == pa.string()
    assert after.select(["id", "text", "prio"]).to_pylist() == [
        {"id": 1, "text": "a", "prio": None},
        {"id": 2, "text": "b", "prio": "P1"},
    ]


def ids(*expected: int) -> Check:
    """These tickets, in this order, each labelled."""

    def check(source: Path, out: Path) -> None:
        rows = rows_of(out)
        assert [row["id"] for row in rows] == list(expected)
        assert {row["label"] for row in rows} <= LABELS

    return check


def values(column: str, *expected: object) -> Check:
    """These values in one column."""

    def check(source: Path, out: Path) -> None:
        assert [row[column] for row in rows_of(out)] == list(expected)

    return check


def exact_records(source: Path, out: Path) -> None:
    """Each record has its own members as they were, then the new ones."""
    before = [line for line in source.read_bytes().split(b"\n") if line.strip()]
    after = out.read_bytes().split(b"\n")[:-1]
    for old, new in zip(before, after, strict=True):
        assert new.startswith(old.rstrip()[:-1] + b',"label":')
        assert list(json.loads(new))[-4:] == OUTPUT_COLUMNS


def mixed_types(source: Path, out: Path) -> None:
    rows = rows_of(out)
    assert rows[0]["v"] == 0.0
    assert rows[150]["v"] == 150.5
    assert rows[0]["w"] == "0"
    assert rows[170]["w"] == "170"
    assert rows[160]["text"] == "160"
    assert rows[160]["label_status"] == "ok"


def strings_stay(source: Path, out: Path) -> None:
    table = pq.ParquetFile(out).read()
    for name in ("text", "ref", "amount", "when"):
        assert table.schema.field(name).type == pa.string()
    assert table.column("ref").to_pylist() == ["001", "002", "003"]
    assert table.column("text").to_pylist() == ["2024-01-01", "2024-01-02", "2024-01-03"]


def long_line(source: Path, out: Path) -> None:
    rows = rows_of(out)
    assert len(rows[1]["log"]) == 3_000_000
    assert {row["label"] for row in rows} <= LABELS


def empty_objects(source: Path, out: Path) -> None:
    rows = rows_of(out)
    assert [json.loads(row["meta"]) if isinstance(row["meta"], str) else row["meta"] for row in rows] == [{}] * 3


def blank_texts(source: Path, out: Path) -> None:
    assert_lossless(source, out)
    rows = rows_of(out)
    assert [row["label_status"] for row in rows] == ["empty", "empty", "empty", "ok", "empty", "ok", "ok"]
    for row in rows:
        assert (row["label"] in LABELS) == (row["label_status"] == "ok")
        assert (row["label_score"] is None) == (row["label"] is None)
        assert row["label_score"] is None or 0 < row["label_score"] <= 1


def long_runs(source: Path, out: Path) -> None:
    assert_lossless(source, out)
    assert [row["label_status"] for row in rows_of(out)] == ["truncated"] * 3 + ["ok"]
    assert {row["label"] for row in rows_of(out)} <= LABELS


def equal_texts_equal_labels(source: Path, out: Path) -> None:
    assert_lossless(source, out)
    rows = rows_of(out)
    assert [row["id"] for row in rows] == list(range(500))
    verdicts: dict[str, tuple[Any, ...]] = {}
    for row in rows:
        verdict = tuple(row[name] for name in OUTPUT_COLUMNS)
        assert verdicts.setdefault(row["text"], verdict) == verdict


QUARANTINE = ("--bad-records", "quarantine")
FEW_TOKENS = ("--max-ticket-tokens", "16")

# The contract's choice for each input; what the inputs call "either" is decided here by its exit code.
CASES = [
    Case("A1/in.parquet", check=lossless),
    Case("A2/in.parquet", check=lossless),
    Case("A4/in.parquet", check=lossless),
    Case("A5/in.parquet", check=lossless),
    Case("A7/in.parquet", check=lossless),
    Case("A9/in.parquet", check=lossless, options=FEW_TOKENS),
    Case("A12/in.parquet", check=lossless),
    Case("A12/in.parquet", 4, ("tag",), out="out.jsonl"),
    Case("A12/dup_text.parquet", 2, ("'text'", "2 columns")),
    Case("A13/in.parquet", check=all_empty),
    Case("A13/late.parquet", check=lossless),
    Case("A15/in.parquet", 2, ("label, label_score;", "--output-prefix", "--replace-columns")),
    Case("A15/in.parquet", options=("--output-prefix", "new_"), check=renamed),
    Case("A15/in.parquet", options=("--replace-columns",), check=replaced),
    Case("A18/in.parquet", check=lossless),
    Case("A19/dt=2024-01-05/src=42/in.parquet", check=lossless),
    Case("A21/indir", check=parts_joined),
    Case("A21/indir_bad", 3, ("part-00001.parquet", "0 bytes")),
    Case("A22/in.parquet", options=("--text-column", "body.text"), check=lossless),
    Case("A22/in.parquet", check=lossless),
    Case("A23/indir", check=parts_widened),
    Case("A24/empty.parquet", 3, ("empty.parquet", "0 bytes")),
    Case("A24/csv.parquet", 3, ("csv.parquet", "not a Parquet file")),
    Case("A24/cut.parquet", 3, ("cut.parquet", "truncated")),
    Case("A24/encrypted.parquet", 3, ("encrypted.parquet", "is encrypted")),
    Case("B1/in.jsonl", check=values("id", 1, 2)),
    Case("B1/in.jsonl", out="out.jsonl", check=ids(1, 2)),
    Case("B3/in.jsonl", out="out.jsonl", check=ids(1, 2, 3)),
    Case("B5/in.jsonl", check=mixed_types),
    Case("B5/in.jsonl", out="out.jsonl", check=exact_records),
    Case("B7/in.jsonl", 3, ("in.jsonl, line 2:", "UTF-8")),
    Case("B7/in.jsonl", 5, options=QUARANTINE, out="out.jsonl", rejects=True, check=ids(1, 3)),
    Case("B8/in.jsonl", 3, ("in.jsonl, line 1:", "NaN")),
    Case("B8/in.jsonl", 5, options=QUARANTINE, rejects=True, check=ids(3)),
    Case("B9/in.jsonl", check=values("text", "second", "b")),
    Case("B9/in.jsonl", out="out.jsonl", check=exact_records),
    Case("B11/in.jsonl", check=strings_stay),
    Case("B11/in.jsonl", out="out.jsonl", check=exact_records),
    Case("B12/in.jsonl", out="out.jsonl", check=long_line),
    Case("B13/in.jsonl.gz", out="out.jsonl.gz", check=ids(0, 1, 2, 3)),
    Case("B13/cut.jsonl.gz", 3, ("cut.jsonl.gz",)),
    Case("B14/in.jsonl", check=empty_objects),
    Case("B14/in.jsonl", out="out.jsonl", check=exact_records),
    Case("B15/mixed.jsonl", 3, ("mixed.jsonl, line 2:", "a number, not a JSON object")),
    Case("B15/mixed.jsonl", 5, options=QUARANTINE, out="out.jsonl", rejects=True, check=ids(1, 4)),
    Case("B15/array.jsonl", 3, ("array", "jq")),
    Case("B15/pretty.jsonl", 3, ("pretty", "jq")),
    Case("B15/pretty.jsonl", 3, ("pretty", "jq"), options=QUARANTINE),
    Case("B15/utf16.jsonl", 3, ("UTF-16", "iconv")),
    Case("C2/in.parquet", check=blank_texts),
    Case("C12/in.parquet", check=lossless),
    Case("C23/in.parquet", check=long_runs),
    Case("C24/in.parquet", check=lossless),
    Case("C25/in.parquet", check=equal_texts_equal_labels),
    Case("D2/übersicht 日本/eingänge.jsonl", out="ausgänge.jsonl", check=exact_records),
]
REFUSED = [case for case in CASES if case.code in (2, 3, 4)]
DONE = [case for case in CASES if case.code in (0, 5)]


def execute(case: Case, cases: Path, quick: list[str], out: Path, start: Callable[..., Outcome] = run) -> Outcome:
    return start("classify", cases / case.source, out, *quick, *case.options)


QUICK_LOOK = ["A12/dup_text.parquet", "A21/indir_bad", "A24/cut.parquet", "B7/in.jsonl", "B13/cut.jsonl.gz"]


@pytest.mark.parametrize("case", slow_but([c for c in REFUSED if c.source in QUICK_LOOK], REFUSED, lambda c: c.name))
def test_refused_input_ends_in_one_line_and_writes_nothing(
    case: Case, cases: Path, quick: list[str], tmp_path: Path
) -> None:
    """A refused input has the documented exit code, one line that says why, and no output."""
    assert_refused(execute(case, cases, quick, tmp_path / case.out), case.code, *case.words)
    assert names_in(tmp_path) == set()


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, cases: Path, quick: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[Case, tuple[Path, Outcome]]:
    """The accepted cases, run."""

    def label(case: Case) -> tuple[Path, Outcome]:
        folder = tmp_path_factory.mktemp("accepted")
        return folder, execute(case, cases, quick, folder / case.out, run_warm)

    return in_parallel(label, chosen(request, test_accepted_input_comes_back_whole, "case"))


@pytest.mark.slow
@pytest.mark.parametrize("case", DONE, ids=[case.name for case in DONE])
def test_accepted_input_comes_back_whole(case: Case, cases: Path, outcomes: dict[Case, tuple[Path, Outcome]]) -> None:
    """An accepted input is labelled and otherwise as it was; only the documented files appear."""
    folder, outcome = outcomes[case]
    out = folder / case.out
    assert_done(outcome, case.code)
    report = read_report(out)
    assert case.check is not None
    case.check(cases / case.source, out)
    expected = {case.out, case.out + ".report.json"} | ({case.out + ".rejects.jsonl"} if case.rejects else set())
    assert names_in(folder) == expected
    assert bool(report["rows"]["quarantined"]) == case.rejects


def test_every_case_is_listed(cases: Path) -> None:
    """No input of the shared cases goes without an expectation here."""
    listed = {case.source.split("/")[0] for case in CASES}
    assert {folder.name for folder in cases.iterdir()} == listed
    files = {str(path.relative_to(cases)) for path in cases.rglob("*") if path.is_file()}
    covered = {file for file in files for case in CASES if file.startswith(case.source)}
    leftovers = files - covered
    assert leftovers == {"A18/out.parquet", "A18/.out.parquet.tmp-1234", "D2/übersicht 日本/labels.json"}


@pytest.mark.slow
def test_leftovers_of_a_crash_are_harmless(cases: Path, quick: list[str], tmp_path: Path) -> None:
    """A half OUT and another program's temporary file beside it do not stop the run; OUT is whole afterwards."""
    folder = tmp_path / "A18"
    shutil.copytree(cases / "A18", folder)
    assert_done(run_warm("classify", folder / "in.parquet", folder / "out.parquet", *quick))
    assert_lossless(folder / "in.parquet", folder / "out.parquet")
    leftovers = names_in(folder) - {"in.parquet", "out.parquet", "out.parquet.report.json"}
    assert leftovers <= {".out.parquet.tmp-1234"}


@pytest.mark.slow
def test_rejects_name_their_lines(cases: Path, quick: list[str], tmp_path: Path) -> None:
    """Each quarantined line is in the rejects file with its number, its reason and its own bytes."""
    out = tmp_path / "out.jsonl"
    assert_done(run_warm("classify", cases / "B15/mixed.jsonl", out, *quick, *QUARANTINE), 5)
    rejects = [json.loads(line) for line in (tmp_path / "out.jsonl.rejects.jsonl").read_bytes().splitlines()]
    assert [reject["line"] for reject in rejects] == [2, 3, 4, 5, 6]
    lines = (cases / "B15/mixed.jsonl").read_text(encoding="utf-8").split("\n")
    assert [reject["raw"] for reject in rejects] == [lines[number - 1] for number in (2, 3, 4, 5, 6)]
    assert all(reject["reason"] for reject in rejects)


@pytest.mark.slow
def test_quarantine_without_bad_lines_is_a_plain_success(cases: Path, quick: list[str], tmp_path: Path) -> None:
    """Nothing to reject: exit 0 and no rejects file."""
    out = tmp_path / "out.jsonl"
    assert_done(run_warm("classify", cases / "B1/in.jsonl", out, *quick, *QUARANTINE))
    assert names_in(tmp_path) == {"out.jsonl", "out.jsonl.report.json"}
