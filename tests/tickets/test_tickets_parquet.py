"""Parquet in and out: nothing lost, and everything refused that must be."""

import datetime as dt
import decimal
import io
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tickets_helpers import (
    OUTPUT,
    all_texts,
    assert_lossless,
    assert_one_line,
    files_in,
    label,
    labelled,
    run_limited,
    shared,
)

from ticket_etl.errors import InputError, OutputError, UsageError
from ticket_etl.tickets import check_output, open_tickets, write_labelled
from ticket_etl.tickets.unify import widen

CORPUS_CODE = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from ticket_etl.errors import OutputError, TicketEtlError, UsageError
from ticket_etl.tickets import open_tickets
from tickets_helpers import assert_lossless, label
folder = Path(sys.argv[1])
for source in map(Path, sys.argv[2:]):
    try:
        options = {}
        try:
            open_tickets(str(source)).close()
        except UsageError:
            names = pq.ParquetFile(source).schema_arrow.names
            options = {"text_columns": [next(n for n in names if names.count(n) == 1)]}
        label(source, folder / "out.parquet", **options)
        assert_lossless(source, folder / "out.parquet")
        try:
            label(source, folder / "out.jsonl", **options)
        except OutputError as error:
            assert "cannot be written as JSON" in str(error)
        print("lossless")
    except TicketEtlError as error:
        assert len(str(error).splitlines()) == 1
        print(type(error).__name__, error)
"""
REFUSED = {
    "incorrect_map_schema.parquet": "Map keys must be annotated",
    "int96_from_spark.parquet": "reach beyond the years",  # the year 11,465,000 beside microseconds
    "large_string_map.brotli.parquet": "more than is read",
}


def corpus() -> list[str]:
    from tickets_helpers import SHARED

    root = SHARED / "data/parquet-testing"
    return sorted(str(p.relative_to(root)) for p in root.rglob("*.parquet*") if p.suffix != ".json") or ["absent"]


def run_corpus_file(name: str, tmp_path: Path) -> str:
    source = shared(f"data/parquet-testing/{name}")
    if source.suffix != ".parquet":  # the encrypted ones; the format goes by the suffix
        (tmp_path / "in").mkdir()
        copy = tmp_path / "in" / "in.parquet"
        copy.write_bytes(source.read_bytes())
        source = copy
    done = run_limited(CORPUS_CODE, str(tmp_path), str(source))
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"
    return done.stdout.strip()


SMALL_CORPUS = [n for n in corpus() if "shredded_variant" not in n]


@pytest.mark.parametrize("name", [n for n in SMALL_CORPUS if n.startswith("bad_data") or n.endswith(".encrypted")])
@pytest.mark.slow
def test_bad_and_encrypted_files_of_other_writers_are_refused_in_one_line(name, tmp_path):
    said = run_corpus_file(name, tmp_path)
    if name.endswith("ARROW-GH-43605.parquet"):  # readable again since the bug it shows was fixed
        assert said == "lossless"
    else:
        assert said.startswith("InputError"), said
        assert ("encrypted" in said) == name.endswith(".encrypted")
    assert not (tmp_path / "out.parquet").exists() or said == "lossless"


@pytest.mark.parametrize(
    "name", [n for n in SMALL_CORPUS if not n.startswith("bad_data") and not n.endswith(".encrypted")]
)
@pytest.mark.slow
def test_files_of_other_writers_come_back_lossless_within_two_gibibytes(name, tmp_path):
    said = run_corpus_file(name, tmp_path)
    refusal = REFUSED.get(Path(name).name)
    if refusal:
        assert said.startswith("InputError"), said
        assert refusal in said
    else:
        assert said == "lossless", said


@pytest.mark.slow
def test_shredded_variants_of_other_writers_come_back_lossless(tmp_path):
    sources = sorted(shared("data/parquet-testing/shredded_variant").glob("*.parquet"))
    done = run_limited(CORPUS_CODE, str(tmp_path), *map(str, sources), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lossless"] * len(sources)


def test_a_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked():
    bomb = shared("data/parquet-testing/data/large_string_map.brotli.parquet")
    code = "import sys; from ticket_etl.tickets import open_tickets; open_tickets(sys.argv[1], text_columns=['arr'])"
    done = run_limited(code, str(bomb), gibibytes=1)
    assert done.returncode == 1
    assert "InputError" in done.stderr
    assert "more than is read" in done.stderr


def every_type() -> pa.Table:
    """Three rows of each type that Parquet takes, a null among them."""
    day = dt.date(2024, 2, 29)
    now = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    columns = {
        "text": pa.array(["one", None, "three"]),
        "nothing": pa.nulls(3),
        "flag": pa.array([True, None, False]),
        **{str(t): pa.array([0, None, 1], t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())},
        "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "i64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "f16": pa.array([1.5, None, float("nan")], pa.float16()),
        "f32": pa.array([0.1, None, float("-inf")], pa.float32()),
        "f64": pa.array([0.1, None, -0.0], pa.float64()),
        "d32": pa.array([decimal.Decimal("1.20"), None, None], pa.decimal32(5, 2)),
        "d64": pa.array([decimal.Decimal("1.20"), None, None], pa.decimal64(15, 2)),
        "d128": pa.array([decimal.Decimal("-1.20"), None, decimal.Decimal("99999.99")], pa.decimal128(30, 2)),
        "d256": pa.array([decimal.Decimal(10) ** 60, None, None], pa.decimal256(76, 0)),
        "date32": pa.array([day, None, dt.date(1, 1, 1)], pa.date32()),
        "date64": pa.array([day, None, day], pa.date64()),
        "t32": pa.array([dt.time(1, 2, 3, 4000), None, dt.time()], pa.time32("ms")),
        "t64": pa.array([dt.time(1, 2, 3, 4), None, dt.time()], pa.time64("us")),
        "ts_ms": pa.array([now.replace(microsecond=123000), None, dt.datetime(9999, 12, 31)], pa.timestamp("ms")),
        "ts_us": pa.array([now, None, dt.datetime(1, 1, 1)], pa.timestamp("us", "Europe/Berlin")),
        "ts_ns": pa.array([1, None, 2**63 - 1], pa.timestamp("ns", "UTC")),
        "took": pa.array([1, None, -5], pa.duration("ms")),
        "large": pa.array(["a", None, ""], pa.large_string()),
        "view": pa.array(["a", None, "x" * 50], pa.string_view()),
        "bin": pa.array([b"\xff", None, b""], pa.binary()),
        "large_bin": pa.array([b"\xff", None, b""], pa.large_binary()),
        "bin_view": pa.array([b"\xff" * 50, None, b""], pa.binary_view()),
        "fixed": pa.array([b"abcd", None, b"\0\0\0\0"], pa.binary(4)),
        "uuid": pa.array([uuid.UUID(int=7).bytes, None, uuid.UUID(int=8).bytes], pa.uuid()),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None, "[]"])),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, None, 1], pa.int8())),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
        "fixed_list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2)),
        "struct": pa.array([{"a": 1, "b": {"c": ["x"]}}, None, {"a": None, "b": None}]),
        "map": pa.array([[("k", 1), ("k", None)], None, []], pa.map_(pa.string(), pa.int32())),
        "dict": pa.array(["b", None, "a"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
        "sev": pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int16()), ["low", "high"], ordered=True),
    }
    return pa.table(columns)


def test_every_type_comes_back_as_it_was(tmp_path):
    pq.write_table(every_type(), tmp_path / "in.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")


def test_metadata_nullability_codecs_row_groups_and_order_are_kept(tmp_path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={b"unit": b"1"}),
            pa.field("text", pa.string(), nullable=False),
            pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False)])),
        ],
        metadata={b"owner": b"support", b"pandas": b"{}"},
    )
    table = pa.table([range(10), [f"t{i}" for i in range(10)], [{"x": i} for i in range(10)]], schema=schema)
    codecs = {"id": "zstd", "text": "gzip", "s.x": "none"}
    order = [pq.SortingColumn(0)]
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=4, compression=codecs, sorting_columns=order)
    label(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")
    written = pq.read_metadata(tmp_path / "out.parquet")
    groups = [written.row_group(i) for i in range(written.num_row_groups)]
    assert [g.num_rows for g in groups] == [4, 4, 2]
    assert [groups[0].column(i).compression for i in range(3)] == ["ZSTD", "GZIP", "UNCOMPRESSED"]
    assert groups[0].sorting_columns == tuple(order)


def test_row_groups_with_dictionaries_of_their_own(tmp_path):
    kind = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    schema = pa.schema([("text", kind)])
    with pq.ParquetWriter(tmp_path / "in.parquet", schema) as writer:
        for values in (["a", "b"], ["c", "a"]):
            array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), values, ordered=True)
            writer.write_table(pa.Table.from_arrays([array], schema=schema))
    assert label(tmp_path / "in.parquet", tmp_path / "out.parquet") == ["a", "b", None, "c", "a", None]
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")


def test_structs_of_views_longer_than_a_batch(tmp_path):
    """pyarrow refuses to write such a column from the middle of an array."""
    piece = pa.array([{"x": "a" * 40}, None, {"x": None}, {"x": "b"}] * 250, pa.struct([("x", pa.string_view())]))
    pq.write_table(pa.table({"text": ["t"] * 12_000, "v": pa.chunked_array([piece] * 12)}), tmp_path / "in.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.parquet", size=1000)
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()])
def test_bytes_that_are_not_utf8_touch_only_their_row_and_stay_as_stored(tmp_path, kind):
    plain = {pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}.get(kind, pa.binary())
    stored = pa.array([b"good", b"caf\xe9", None, "schön".encode()], plain)
    array = stored if kind == plain or kind == pa.binary_view() else stored.view(kind)
    if kind == pa.binary_view():
        array = stored.cast(kind)
    pq.write_table(pa.table({"text": array}), tmp_path / "in.parquet")
    with open_tickets(str(tmp_path / "in.parquet")) as tickets:
        assert tickets.num_invalid_texts == 1
        assert all_texts(tickets) == ["good", "caf\ufffd", None, "schön"]
    label(tmp_path / "in.parquet", tmp_path / "out.parquet")
    back = pq.ParquetFile(tmp_path / "out.parquet").read().column("text")
    assert back.type == kind
    assert [bytes(s.as_buffer()) if s.is_valid else None for s in back] == [b"good", b"caf\xe9", None, "schön".encode()]


def test_int96_dates_beyond_nanoseconds_do_not_wrap(tmp_path):
    far = pa.array([dt.datetime(9999, 12, 31, 3), None, dt.datetime(1, 1, 1)], pa.timestamp("us"))
    near = pa.array([1, 2, 3], pa.timestamp("ns"))
    options = {"use_deprecated_int96_timestamps": True}
    pq.write_table(pa.table({"text": ["a", "b", "c"], "at": near}), tmp_path / "near.parquet", **options)
    label(tmp_path / "near.parquet", tmp_path / "out.parquet")
    assert_lossless(tmp_path / "near.parquet", tmp_path / "out.parquet")
    writer_bug = pa.table({"text": ["a", "b", "c"], "at": far})
    pq.write_table(writer_bug, tmp_path / "far.parquet", **options)
    seconds = pq.ParquetFile(tmp_path / "far.parquet", coerce_int96_timestamp_unit="s").read().column("at")
    if seconds.cast(pa.timestamp("us")).combine_chunks().equals(far):  # the writer kept the dates, so must we
        label(tmp_path / "far.parquet", tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet").column("at").combine_chunks().equals(far)


def test_duplicate_and_dotted_names_are_columns_of_their_own(tmp_path):
    columns = [
        pa.array(["t1", "t2"]),
        pa.array([1, 2]),
        pa.array(["x", "y"]),
        pa.array([{"text": "in"}] * 2),
        ["p", "q"],
    ]
    names = ["text", "tag", "tag", "body", "body.text"]
    pq.write_table(pa.Table.from_arrays([pa.array(c) for c in columns], names=names), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    assert label(tmp_path / "in.parquet", out, text_columns=["body.text"]) == ["p", "q"]
    assert_lossless(tmp_path / "in.parquet", out)
    with pytest.raises(OutputError, match="column 'tag' cannot be written as JSON"):
        label(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="2 columns named 'tag'"):
        open_tickets(str(tmp_path / "in.parquet"), text_columns=["tag"])


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"body": "b", "text": "t"}, "text"),
        ({"description": "d", "body": "b"}, "body"),
        ({"n": 1, "notes": "x"}, "notes"),
        ({"n": 1, "Text": "x", "body": {"text": "y"}}, "Text"),
        ({"text": 5, "notes": "x"}, "text"),
    ],
)
def test_which_column_is_the_text(tmp_path, columns, chosen):
    pq.write_table(pa.Table.from_pylist([columns]), tmp_path / "in.parquet")
    with open_tickets(str(tmp_path / "in.parquet")) as tickets:
        assert tickets.text_columns == (chosen,)


@pytest.mark.parametrize("columns", [{"a": "x", "b": "y"}, {"a": 1}])
def test_no_clear_text_column_lists_the_columns(tmp_path, columns):
    pq.write_table(pa.Table.from_pylist([columns]), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=r"--text-column.*a \("):
        open_tickets(str(tmp_path / "in.parquet"))


def test_several_text_columns_are_joined_by_a_blank_line_in_the_order_given(tmp_path):
    table = pa.table(
        {"subject": ["s", None, " ", None, ""], "body": ["b", "b", "b", None, ""], "n": [1, 2, None, None, 5]}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    with open_tickets(str(tmp_path / "in.parquet"), text_columns=["body", "subject"]) as tickets:
        assert all_texts(tickets) == ["b\n\ns", "b", "b", None, ""]
    with open_tickets(str(tmp_path / "in.parquet"), text_columns=["n"]) as tickets:
        assert all_texts(tickets) == ["1", "2", None, None, "5"]
    with pytest.raises(UsageError, match="no column 'Body'"):
        open_tickets(str(tmp_path / "in.parquet"), text_columns=["Body"])
    with pytest.raises(UsageError, match="named twice"):
        open_tickets(str(tmp_path / "in.parquet"), text_columns=["body", "body"])


def test_labels_replace_columns_of_their_name_only_when_asked(tmp_path):
    table = pa.table({"label": ["old"], "text": ["t"], "Label": ["kept"], "label_score": [1]})
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=r"label, label_score.*--output-prefix.*--replace-columns"):
        label(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert files_in(tmp_path) == ["in.parquet"]
    label(tmp_path / "in.parquet", tmp_path / "out.parquet", replace_columns=True)
    back = pq.read_table(tmp_path / "out.parquet")
    assert back.column_names == ["text", "Label", *OUTPUT.names]
    assert back.column("label").to_pylist() == ["label 0"]


def damaged(good: bytes) -> dict[str, bytes]:
    return {
        "empty (0 bytes)": b"",
        "not a Parquet file": b"id,text\n1,a\n",
        "truncated": good[:-9],
        "encrypted": b"PARE" + good[4:-4] + b"PARE",
        "damaged": good[:-40] + b"\xff" * 32 + good[-8:],
        "truncated ": b"PAR1",
        "damaged ": b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1",
    }


@pytest.mark.parametrize("reason", list(damaged(b"x" * 99)))
def test_damaged_files_are_refused_in_one_line(tmp_path, reason):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"] * 50}), buffer)
    (tmp_path / "in.parquet").write_bytes(damaged(buffer.getvalue())[reason])
    with pytest.raises(InputError, match=reason.strip().replace("(", r"\(").replace(")", r"\)")) as caught:
        open_tickets(str(tmp_path / "in.parquet"))
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path / "in.parquet") in str(caught.value)


@pytest.mark.parametrize("offset", range(4, 200, 7))
def test_damage_anywhere_ends_in_one_line_or_not_at_all(tmp_path, offset):
    """A flipped byte in a page is either harmless or an InputError, never another exception."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(50)], "n": range(50)}), buffer)
    data = bytearray(buffer.getvalue())
    data[offset % len(data)] ^= 0xFF
    (tmp_path / "in.parquet").write_bytes(data)
    try:
        with open_tickets(str(tmp_path / "in.parquet")) as tickets:
            all_texts(tickets)
    except InputError as error:
        assert_one_line(error)


def test_a_named_file_is_only_that_file(tmp_path):
    folder = tmp_path / "dt=2024-01-05" / "src=42 [x]*?%20:"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a"], "src": ["own"]}), folder / "in.parquet")
    label(folder / "in.parquet", tmp_path / "out.parquet")
    assert pq.ParquetFile(tmp_path / "out.parquet").schema_arrow.names == ["text", "src", *OUTPUT.names]


def test_no_rows_and_empty_row_groups(tmp_path):
    schema = pa.schema([("text", pa.string()), ("n", pa.int64())])
    pq.write_table(schema.empty_table(), tmp_path / "in.parquet")
    assert label(tmp_path / "in.parquet", tmp_path / "out.parquet") == []
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_text_batches_are_bounded_by_bytes_and_rows(tmp_path):
    texts = ["x" * (3 << 20)] * 20 + ["y"] * 20_000
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    with open_tickets(str(tmp_path / "in.parquet")) as tickets:
        sizes = [(len(b), sum(len(t or "") for t in b)) for b in tickets.texts()]
    assert sum(n for n, _ in sizes) == len(texts)
    assert max(n for n, _ in sizes) <= 8192
    assert max(size for _, size in sizes) <= 16 << 20


def test_long_dictionary_values_are_read_in_small_batches_and_short_ones_in_large(tmp_path):
    pq.write_table(pa.table({"text": ["short"] * 9000}), tmp_path / "short.parquet")
    pq.write_table(pa.table({"text": ["short"] * 600, "body": ["x" * (1 << 18)] * 600}), tmp_path / "long.parquet")
    with open_tickets(str(tmp_path / "long.parquet")) as tickets:
        assert max(batch.nbytes for batch, _ in tickets.batches()) < 64 << 20
    with open_tickets(str(tmp_path / "short.parquet")) as tickets:
        assert len(list(tickets.batches())) <= 4


def test_a_row_group_too_large_for_memory_is_split(tmp_path, monkeypatch):
    from ticket_etl.tickets import output_parquet

    monkeypatch.setattr(output_parquet, "GROUP_BYTES", 1 << 20)
    texts = [f"{i:04d}" + "x" * 10_000 for i in range(3000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.parquet", size=999)
    assert_lossless(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups > 3


def test_same_input_and_labels_give_the_same_bytes_however_the_labels_are_cut(tmp_path):
    pq.write_table(every_type(), tmp_path / "in.parquet")
    for suffix in (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst"):
        one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
        label(tmp_path / "in.parquet", one, size=1)
        label(tmp_path / "in.parquet", two, size=2)
        assert one.read_bytes() == two.read_bytes()


# ------------------------------------------------------------ data sets of parts


def write_parts(folder: Path, *tables: pa.Table) -> Path:
    folder.mkdir()
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{i}.parquet")
    return folder


def test_a_folder_is_its_parts_in_order_of_name_without_markers(tmp_path):
    parts = write_parts(tmp_path / "in", pa.table({"text": ["a", "b"]}), pa.table({"text": ["c"]}))
    for name in ("_SUCCESS", ".part-0.parquet.crc"):
        (parts / name).write_bytes(b"")
    (parts / "_tmp").mkdir()
    assert label(parts, tmp_path / "out.parquet") == ["a", "b", "c"]
    assert pq.read_table(tmp_path / "out.parquet").column("label").to_pylist() == ["label 0", "label 1", "label 2"]


def test_drifting_schemas_are_widened_by_rule(tmp_path):
    one = pa.table(
        {"id": pa.array([1], pa.int32()), "text": ["a"], "prio": pa.nulls(1), "f": pa.array([0.1], pa.float32())}
    )
    two = pa.table(
        {"text": pa.array([b"\xffb"]).view(pa.string()), "prio": ["P1"], "late": [7], "id": [2**40], "f": [0.1]}
    )
    parts = write_parts(tmp_path / "in", one, two)
    label(parts, tmp_path / "out.parquet")
    back = pq.ParquetFile(tmp_path / "out.parquet").read()
    assert back.column_names[:5] == ["id", "text", "prio", "f", "late"]
    assert back.schema.types[:5] == [pa.int64(), pa.string(), pa.string(), pa.float64(), pa.int64()]
    assert back.column("id").to_pylist() == [1, 2**40]
    assert back.column("late").to_pylist() == [None, 7]
    assert back.column("text").cast(pa.binary()).to_pylist() == [b"a", b"\xffb"]


@pytest.mark.parametrize(
    ("a", "b", "wide"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.uint8(), pa.int8(), None),
        (pa.int64(), pa.float64(), None),
        (pa.float16(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string_view(), pa.string(), pa.large_string()),
        (pa.binary(), pa.binary_view(), pa.large_binary()),
        (pa.string(), pa.binary(), None),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.timestamp("us"), pa.timestamp("ns"), None),
    ],
)
def test_widening_never_changes_a_value(a, b, wide):
    assert widen(a, b) == wide
    assert widen(b, a) == wide


def test_parts_that_do_not_fit_are_refused_by_file_and_column(tmp_path):
    parts = write_parts(tmp_path / "in", pa.table({"text": ["a"], "n": [1]}), pa.table({"text": ["a"], "n": ["one"]}))
    with pytest.raises(InputError, match=r"part-1\.parquet: column 'n' has type string here and int64"):
        open_tickets(str(parts))


@pytest.mark.parametrize("extra", ["part-9.parquet", "notes.txt", "sub", "part-9.jsonl"])
def test_what_is_no_part_is_refused_not_skipped(tmp_path, extra):
    parts = write_parts(tmp_path / "in", pa.table({"text": ["a"]}))
    if extra == "sub":
        (parts / extra).mkdir()
    else:
        (parts / extra).write_bytes(b"")
    with pytest.raises(InputError):
        open_tickets(str(parts))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no parts"):
        open_tickets(str(tmp_path / "none"))


def test_the_hash_is_of_content_and_of_the_names_of_parts(tmp_path):
    table = pa.table({"text": ["a"]})
    write_parts(tmp_path / "a", table)
    write_parts(tmp_path / "b", table)
    write_parts(tmp_path / "c", table)
    (tmp_path / "c" / "part-0.parquet").rename(tmp_path / "c" / "part-1.parquet")
    hashes = [open_tickets(str(tmp_path / name)).content_hash for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    single = open_tickets(str(tmp_path / "a" / "part-0.parquet")).content_hash
    import hashlib

    assert single == hashlib.sha256((tmp_path / "a" / "part-0.parquet").read_bytes()).hexdigest()


# ------------------------------------------------------------ where OUT may be


@pytest.fixture
def source(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def check(source: Path, out: Path, **options) -> None:
    with open_tickets(str(source)) as tickets:
        check_output(tickets, out, output_columns=OUTPUT, **options)


def test_out_that_is_the_input_in_any_spelling_is_refused(source, monkeypatch):
    folder = source.parent
    (folder / "link.parquet").symlink_to("in.parquet")
    os.link(source, folder / "hard.parquet")
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder)
    for out in ("in.parquet", "link.parquet", "hard.parquet", "sub/../in.parquet", str(folder / "." / "in.parquet")):
        with pytest.raises(UsageError, match="is the input itself"):
            check(source, Path(out))


def test_out_inside_the_input_folder_is_refused(tmp_path):
    parts = write_parts(tmp_path / "in", pa.table({"text": ["a"]}))
    with pytest.raises(UsageError, match="lies in the input folder"):
        check(parts, parts / "out.parquet")
    check(parts, parts / "_out.parquet")


def test_other_impossible_outputs(source, tmp_path):
    with pytest.raises(UsageError, match="unknown kind of output"):
        check(source, tmp_path / "out.csv")
    with pytest.raises(OutputError, match="does not exist"):
        check(source, tmp_path / "no" / "out.parquet")
    (tmp_path / "dir.parquet").mkdir()
    with pytest.raises(OutputError, match="not a regular file"):
        check(source, tmp_path / "dir.parquet")
    (tmp_path / "there.parquet").write_bytes(b"old")
    check(source, tmp_path / "there.parquet")
    with pytest.raises(OutputError, match="exists already"):
        check(source, tmp_path / "there.parquet", clobber=False)
    (tmp_path / "loop.parquet").symlink_to("loop.parquet")
    with pytest.raises(OutputError):
        check(source, tmp_path / "loop.parquet")
    (tmp_path / "null.parquet").symlink_to("/dev/null")
    with pytest.raises(OutputError, match="not a regular file"):
        check(source, tmp_path / "null.parquet")


@pytest.mark.parametrize("num_labels", [0, 2, 4])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_too_few_or_too_many_labels_write_nothing(source, num_labels, suffix):
    out = source.with_name(f"out{suffix}")
    out.write_bytes(b"old")
    with open_tickets(str(source)) as tickets, pytest.raises(OutputError, match="labels"):
        write_labelled(tickets, out, labelled(num_labels), output_columns=OUTPUT)
    assert out.read_bytes() == b"old"
    assert len(files_in(source.parent)) == 2


def test_errors_of_whoever_computes_the_labels_pass_through(source):
    def failing():
        yield from labelled(2)
        raise ConnectionError("the model went away")

    out = source.with_name("out.parquet")
    with open_tickets(str(source)) as tickets, pytest.raises(ConnectionError, match="went away"):
        write_labelled(tickets, out, failing())
    assert files_in(source.parent) == ["in.parquet"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_full_disk_in_the_middle_of_the_output_keeps_the_old_one(tmp_path, suffix):
    code = """
import sys, resource
from pathlib import Path
from ticket_etl.errors import OutputError
from tickets_helpers import label
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    label(Path(sys.argv[1]), Path(sys.argv[2]))
except OutputError as error:
    print("OutputError", error)
"""
    texts = [os.urandom(40).hex() for _ in range(10_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    out = tmp_path / f"out{suffix}"
    out.write_bytes(b"old")
    done = run_limited(code, str(tmp_path / "in.parquet"), str(out))
    assert done.stdout.startswith("OutputError"), done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert out.read_bytes() == b"old"
    assert files_in(tmp_path) == sorted(["in.parquet", out.name])


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_file_that_the_disk_garbles_is_noticed_before_it_replaces_the_old_one(source, monkeypatch, suffix):
    """The last bytes are cut off between the flush and the read-back."""
    out = source.with_name(f"out{suffix}")
    out.write_bytes(b"old")
    flush = os.fsync

    def garble(descriptor: int) -> None:
        flush(descriptor)
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 9)

    monkeypatch.setattr(os, "fsync", garble)
    with open_tickets(str(source)) as tickets, pytest.raises(OutputError) as caught:
        write_labelled(tickets, out, labelled(3))
    assert_one_line(caught.value)
    assert out.read_bytes() == b"old"
    assert len(files_in(source.parent)) == 2


def test_an_input_replaced_during_the_run_is_still_the_one_that_was_opened(source):
    with open_tickets(str(source)) as tickets:
        new = source.with_name("new.parquet")
        pq.write_table(pa.table({"text": ["other"]}), new)
        new.replace(source)
        write_labelled(tickets, source.with_name("out.parquet"), labelled(3))
    assert pq.read_table(source.with_name("out.parquet")).column("text").to_pylist() == ["a", "b", "c"]


def test_an_input_changed_in_place_during_the_run_is_refused(source):
    with open_tickets(str(source)) as tickets:
        with source.open("ab") as file:
            file.write(b"more")
        with pytest.raises(InputError, match="changed while it was being read"):
            write_labelled(tickets, source.with_name("out.parquet"), labelled(3))
    assert files_in(source.parent) == ["in.parquet"]


def test_labels_may_be_computed_from_the_texts_while_they_are_written(source):
    with open_tickets(str(source)) as tickets:

        def scored():
            for batch in tickets.texts():
                yield pa.RecordBatch.from_arrays([pa.array([t.upper() for t in batch])], names=["label"])

        write_labelled(tickets, source.with_name("out.parquet"), scored())
    assert pq.read_table(source.with_name("out.parquet")).column("label").to_pylist() == ["A", "B", "C"]


@pytest.mark.parametrize("name", ["none.parquet", "in.csv", "a\0b.parquet"])
def test_unreadable_paths(tmp_path, name):
    if name == "in.csv":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError):
        open_tickets(f"{tmp_path}/{name}")


def test_a_pipe_by_name_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "in.jsonl")
    with pytest.raises(InputError, match="not a regular file"):
        open_tickets(str(tmp_path / "in.jsonl"))


# ------------------------------------------------------------ any table at all

LEAVES = st.sampled_from(
    [
        pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.string(),
        pa.large_string(), pa.string_view(), pa.binary(), pa.binary(3), pa.date32(), pa.time64("us"),
        pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Asia/Kolkata"),
        pa.duration("us"), pa.decimal128(12, 3), pa.dictionary(pa.int16(), pa.string()),
    ]
)  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


def containers(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    # pyarrow writes no nested dictionaries, and no row groups of structs of views
    nested = children.filter(lambda t: not pa.types.is_dictionary(t) and not pa.types.is_string_view(t))
    return st.one_of(
        st.builds(pa.list_, nested),
        st.builds(pa.large_list, nested),
        st.lists(st.tuples(NAMES, nested), min_size=1, max_size=3, unique_by=lambda f: f[0]).map(pa.struct),
        st.builds(lambda v: pa.map_(pa.string(), v), nested),
    )


KINDS = st.recursive(LEAVES, containers, max_leaves=4)


def values_of(kind: pa.DataType) -> st.SearchStrategy:
    types = pa.types
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    if types.is_null(kind):
        return st.none()
    if types.is_boolean(kind):
        return st.none() | st.booleans()
    if types.is_integer(kind):
        low, high = (
            (0, 2**kind.bit_width - 1)
            if types.is_unsigned_integer(kind)
            else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        )
        return st.none() | st.integers(low, high)
    if types.is_floating(kind):
        return st.none() | st.floats(width=kind.bit_width)
    if types.is_decimal(kind):
        return st.none() | st.decimals(-(10**8), 10**8, places=3)
    if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return st.none() | texts
    if types.is_fixed_size_binary(kind):
        return st.none() | st.binary(min_size=3, max_size=3)
    if types.is_binary(kind):
        return st.none() | st.binary(max_size=8)
    if types.is_date(kind):
        return st.none() | st.dates()
    if types.is_time(kind):
        return st.none() | st.times()
    if types.is_timestamp(kind) or types.is_duration(kind):
        return st.none() | st.integers(-(2**62), 2**62)
    if types.is_map(kind):
        return st.none() | st.lists(st.tuples(texts, values_of(kind.item_type)), max_size=3)
    if types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: values_of(f.type) for f in kind})
    return st.none() | st.lists(values_of(kind.value_type), max_size=3)


@st.composite
def tables(draw) -> pa.Table:
    rows = draw(st.integers(0, 12))
    fields, columns = [pa.field("text", pa.string())], [pa.array([f"t{i}" for i in range(rows)])]
    for i, kind in enumerate(draw(st.lists(KINDS, max_size=4))):
        values = draw(st.lists(values_of(kind), min_size=rows, max_size=rows))
        meta = draw(st.none() | st.dictionaries(NAMES.filter(bool), NAMES, max_size=2))
        columns.append(pa.array(values, kind))
        fields.append(pa.field(draw(NAMES) + str(i), kind, nullable=True, metadata=meta or None))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, draw(st.none() | st.just({b"k": b"\xff"}))))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tables(), st.integers(1, 8))
def test_any_table_comes_back_lossless(tmp_path_factory, table, group_rows):
    folder = tmp_path_factory.mktemp("any")
    pq.write_table(table, folder / "in.parquet", row_group_size=group_rows)
    label(folder / "in.parquet", folder / "out.parquet", size=3)
    assert_lossless(folder / "in.parquet", folder / "out.parquet")
    label(folder / "in.parquet", folder / "out.jsonl", size=3)
    assert (folder / "out.jsonl").read_bytes().count(b"\n") == table.num_rows
