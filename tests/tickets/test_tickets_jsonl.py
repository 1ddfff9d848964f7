"""JSON Lines: each rule for lines, records and columns, and files of other projects' test suites."""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tickets_helpers import OUTPUT, ROOT, SHARED, all_texts, assert_one_line, files_in, label, run_limited, shared

from ticket_etl.errors import InputError, OutputError, UsageError
from ticket_etl.tickets import check_output, open_tickets
from ticket_etl.tickets.jsonl_records import BadRecordError, parse_record, with_members, without_keys

ADDED = b',"label":"label %d","label_score":0.9,"label_margin":%s,"label_status":"ok"}'


def added(row: int) -> bytes:
    return ADDED % (row, b"null" if row % 2 else b"1.5")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def columns_of(path: Path, *lines: bytes) -> dict[str, tuple[str, list]]:
    """Give type and values of each carried column of the Parquet output."""
    write(path, *lines)
    label(path, path.with_name("out.parquet"), text_columns=["text"])
    table = pq.ParquetFile(path.with_name("out.parquet")).read()
    return {
        n: (str(table.schema.field(n).type), table.column(n).to_pylist()) for n in table.column_names[: -len(OUTPUT)]
    }


# ------------------------------------------------------------ lines


def test_each_record_keeps_its_bytes_and_gets_the_labels_before_its_brace(source):
    lines = [
        b'{"id":123456789012345678901234567890,"text":"a","x":1.50,"y":1e2}',
        b'  { "text" : "b\\u00e9" , "text" : "c" }\t',
        b'{"text":"d","deep":{"a":[{}]}}\r',
        b"{}",
        b"{ }",
        '{"text":"日本"}'.encode(),
    ]
    write(source, *lines)
    out = source.with_name("out.jsonl")
    assert label(source, out) == ["a", "c", "d", None, None, "日本"]
    expected = []
    for i, line in enumerate(lines):
        head, brace, tail = line.rpartition(b"}")
        assert brace
        new = added(i)[1:] if head.strip() == b"{" else added(i)
        expected.append(head + new + tail)
    assert out.read_bytes() == b"\n".join(expected) + b"\n"
    assert [json.loads(line)["label"] for line in out.read_bytes().splitlines()] == [f"label {i}" for i in range(6)]


def test_bom_crlf_blank_lines_and_a_missing_last_newline(source):
    source.write_bytes(b'\xef\xbb\xbf\r\n{"text":"a"}\r\n\r\n   \r\n{"text":"b\xe2\x80\xa8b"}\r\n\t\n{"text":"c"}')
    out = source.with_name("out.jsonl")
    assert label(source, out) == ["a", "b\u2028b", "c"]
    assert out.read_bytes().count(b"\n") == 3
    assert not out.read_bytes().startswith(b"\xef\xbb\xbf")
    with open_tickets(str(source)) as tickets:
        assert tickets.schema.names == ["text"]


def test_line_numbers_are_those_of_the_file(source):
    source.write_bytes(b'\xef\xbb\xbf\n\r\n{"text":"a"}\n\n{"text":}\n')
    with pytest.raises(InputError, match=r"in\.jsonl, line 5: not JSON: Expecting value at character 9; .*quarantine"):
        open_tickets(str(source))


def test_lines_of_megabytes(source):
    write(source, b'{"text":"short"}', b'{"text":"t","log":"' + b"x" * 5_000_000 + b'"}', b'{"text":"end"}')
    assert label(source, source.with_name("out.parquet")) == ["short", "t", "end"]


def test_a_line_beyond_the_limit_is_refused_without_being_held(source, monkeypatch):
    from ticket_etl.tickets import jsonl_lines

    monkeypatch.setattr(jsonl_lines, "MAX_LINE_BYTES", 4 << 20)
    write(source, b'{"text":"a"}', b'{"text":"' + b"x" * (6 << 20) + b'"}')
    with pytest.raises(InputError, match="line 2: longer than 4 MiB"):
        open_tickets(str(source))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_of_several_members_are_read_to_their_end(tmp_path, suffix):
    lines = [b'{"text":"one"}\n', b'{"text":"two"}\n']
    pack = gzip.compress if suffix == ".gz" else lambda data: pa.compress(data, "zstd", asbytes=True)
    source = tmp_path / f"in.jsonl{suffix}"
    source.write_bytes(pack(lines[0]) + pack(lines[1]))
    assert label(source, tmp_path / "out.ndjson") == ["one", "two"]
    packed = pack(b"".join(lines) * 500)
    for cut in (1, 9, len(packed) // 2, len(packed) - 3):
        source.write_bytes(packed[:-cut])
        with pytest.raises(InputError, match="cannot be read to its end"):
            open_tickets(str(source))
    for data in (packed + b"garbage", b"garbage"):
        source.write_bytes(data)
        with pytest.raises(InputError):
            open_tickets(str(source))
    source.write_bytes(b"")
    with pytest.raises(InputError, match="0 bytes"):
        open_tickets(str(source))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".NDJSON.GZ", ".parquet"])
def test_every_output_format_holds_the_same(source, suffix):
    write(source, b'{"text":"a","n":1}', b'{"text":"b","n":2}')
    out = source.with_name(f"out{suffix}")
    label(source, out)
    if suffix == ".parquet":
        assert pq.read_table(out).to_pylist()[1]["label"] == "label 1"
        return
    data = out.read_bytes()
    if suffix.lower().endswith(".gz"):
        data = gzip.decompress(data)
    elif suffix.endswith(".zst"):
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            data = stream.read()
    assert data == b'{"text":"a","n":1' + added(0) + b'\n{"text":"b","n":2' + added(1) + b"\n"


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b'[{"text":"a"},{"text":"b"}]\n', r"jq -c '\.\[\]'"),
        (b'{\n "text": "a"\n}\n', r"jq -c \."),
        ('{"text":"a"}\n'.encode("utf-16"), "iconv"),
        ('{"text":"a"}\n'.encode("utf-16-le"), "iconv"),
        ('{"text":"a"}\n'.encode("utf-16-be"), "UTF-16"),
        (gzip.compress(b'{"text":"a"}\n', mtime=0), r"\.jsonl\.gz"),
        (pa.compress(b'{"text":"a"}\n', "zstd", asbytes=True), r"\.jsonl\.zst"),
        (b"PAR1....", r"\.parquet"),
        (b'{"text":"a"}\r{"text":"b"}\r', "carriage return"),
        (b"id,text\n1,a\n", "not JSON"),
    ],
)
@pytest.mark.parametrize("bad_records", ["stop", "quarantine"])
def test_files_of_other_kinds_are_refused_with_a_hint_under_either_policy(source, data, hint, bad_records):
    source.write_bytes(data)
    with pytest.raises(InputError, match=hint) as caught:
        open_tickets(str(source), bad_records=bad_records)
    assert len(str(caught.value).splitlines()) == 1
    assert files_in(source.parent) == ["in.jsonl"]


def test_an_input_of_no_lines_is_an_input_of_no_tickets(source):
    source.write_bytes(b"\n \n")
    for out in ("out.jsonl", "out.parquet"):
        assert label(source, source.with_name(out)) == []
    assert source.with_name("out.jsonl").read_bytes() == b""
    assert pq.read_table(source.with_name("out.parquet")).column_names == OUTPUT.names


def test_standard_input_is_read_once_and_used_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text":"a"}\n{"text":"b"}')))
    assert label("-", tmp_path / "out.parquet") == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text":1x}')))
    with pytest.raises(InputError, match="standard input, line 1"):
        open_tickets("-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="closed"):
        open_tickets("-")


def test_a_folder_of_parts_counts_lines_by_part(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "b.jsonl", b'{"text":"second","late":1}')
    (folder / "a.ndjson.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"text":"first"}'))
    (folder / "_SUCCESS").touch()
    assert label(folder, tmp_path / "out.parquet") == ["first", "second"]
    write(folder / "c.jsonl", b'{"text":"x"}', b"42")
    with pytest.raises(InputError, match=r"c\.jsonl, line 2: a number, not a JSON object"):
        open_tickets(str(folder))


def test_names_outside_ascii_under_a_c_locale(tmp_path):
    folder = tmp_path / "übersicht 日本 [x]*?%20:"
    folder.mkdir()
    write(folder / "-eingänge.jsonl", '{"text":"Rückerstattung","kategorieä":"日本"}'.encode())
    code = """
import os, sys
from pathlib import Path
from tickets_helpers import label
os.chdir(sys.argv[1])
for source, out in (sys.argv[2:4], sys.argv[3:5]):
    label(source, Path(out), replace_columns=True)
"""
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    command = [sys.executable, "-c", code, str(folder), "-eingänge.jsonl", "ö.parquet", "ü.jsonl"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "ü.jsonl").read_bytes())["kategorieä"] == "日本"


# ------------------------------------------------------------ records

BAD = {
    b'{"text":NaN}': "NaN is not a JSON number",
    b'{"text":-Infinity}': "-Infinity is not",
    b'{"text":1e999}': "beyond the range of a double",
    b'{"text":"\\ud800"}': "lone surrogate",
    b'{"\\udfff":1}': "lone surrogate",
    b'{"text":"b\xff"}': "byte 11 of the line is not UTF-8",
    b'{"text":"\xed\xa0\x80"}': "not UTF-8",
    b'{"text":"a",}': "not JSON",
    b'{"text":"a"},': "Extra data",
    b'{"text":"a"} {"text":"b"}': "Extra data",
    b'{"text":"a\x00"}': "control character",
    b'{"n":' + b"1" * 4301 + b"}": "more than 4300 digits",
    b'{"a":' + b"[" * 300 + b"]" * 300 + b"}": "nested deeper than 256",
    b"[" * 100_000: "nested deeper than 256",
    b'{"a":' * 100_000: "nested deeper than 256",
    b"42": "a number, not",
    b"[]": "an array, not",
    b"null": "null, not",
    b'"x"': "a string, not",
    b"true": "a boolean, not",
    b"{'text':'a'}": "not JSON",
    b'\xef\xbb\xbf{"text":"a"}': "not JSON",
}


@pytest.mark.parametrize("line", list(BAD), ids=lambda line: repr(line[:20]))
def test_bad_lines_give_their_number_and_reason(source, line):
    write(source, b'{"text":"good"}', line)
    with pytest.raises(InputError, match="line 2: ") as caught:
        open_tickets(str(source))
    assert BAD[line] in str(caught.value)
    assert len(str(caught.value)) < 500


def test_quarantine_keeps_bad_lines_byte_for_byte_apart(source):
    good = b'{"text":"good"}'
    lines = [good, *BAD, b"", good]
    write(source, *lines)
    rejects, out = source.with_name("out.rejects.jsonl"), source.with_name("out.jsonl")
    with open_tickets(str(source), bad_records="quarantine") as tickets:
        assert (tickets.num_rows, tickets.num_quarantined) == (2, len(BAD))
        assert not rejects.exists()
        tickets.write_rejects(rejects)
    entries = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert [e["line"] for e in entries] == list(range(2, len(BAD) + 2))
    kept = [e["raw"].encode() if "raw" in e else base64.b64decode(e["raw_base64"]) for e in entries]
    assert kept == list(BAD)
    assert all(
        reason in e["reason"] and e["file"] == str(source) for e, reason in zip(entries, BAD.values(), strict=True)
    )
    label(source, out, bad_records="quarantine")
    assert out.read_bytes() == good[:-1] + added(0) + b"\n" + good[:-1] + added(1) + b"\n"


def test_a_rejects_file_of_an_earlier_run_does_not_outlive_the_next(source):
    rejects = write(source.with_name("out.rejects.jsonl"), b"old")
    write(source, b'{"text":"a"}')
    open_tickets(str(source)).write_rejects(rejects)
    assert rejects.exists()
    open_tickets(str(source), bad_records="quarantine").write_rejects(rejects)
    assert not rejects.exists()
    write(source, b'{"text":"a"}', b"x")
    with open_tickets(str(source), bad_records="quarantine") as tickets:
        assert tickets.num_quarantined == 1
    with pytest.raises(UsageError, match="bad-records"):
        open_tickets(str(source), bad_records="skip")


def test_a_later_failure_writes_no_rejects(tmp_path):
    source = tmp_path / "in.jsonl.gz"
    data = gzip.compress(b'{"text":"a"}\nbad\n' + os.urandom(100_000).hex().encode())
    source.write_bytes(data[:-12])
    with pytest.raises(InputError):
        open_tickets(str(source), bad_records="quarantine")
    assert files_in(tmp_path) == ["in.jsonl.gz"]


def test_pairs_of_surrogate_escapes_are_text(source):
    write(source, b'{"text":"\\ud83d\\ude00 \\\\ud800"}')
    assert label(source, source.with_name("out.parquet")) == ["😀 \\ud800"]


def test_replacing_labels_cuts_only_those_members_out(source):
    write(
        source,
        b'{"label":"old","text":"a", "Label":1.50}',
        b'{ "text":"b","label":{"x":[1]}, "label_score" : 2 }',
        b'{"label":1}',
    )
    with pytest.raises(UsageError, match="label"):
        label(source, source.with_name("out.jsonl"))
    label(source, source.with_name("out.jsonl"), replace_columns=True)
    expected = [b'{"text":"a", "Label":1.50' + added(0), b'{ "text":"b"' + added(1), b"{" + added(2)[1:]]
    assert source.with_name("out.jsonl").read_bytes() == b"\n".join(expected) + b"\n"


# ------------------------------------------------------------ columns


def test_types_of_columns_are_from_all_records(source):
    big, huge = 2**63, 10**30
    rows = [
        {"text": "t", "i": 1, "u": 1, "d": huge, "x": 10**50, "f": 1, "g": 2**53 + 1, "s": "007", "b": True, "n": None},
        {
            "text": "t",
            "i": -1,
            "u": big,
            "d": -huge,
            "x": 1,
            "f": 1.5,
            "g": 0.5,
            "s": "2024-01-05",
            "b": None,
            "late": 1,
        },
    ]
    got = columns_of(source, *(json.dumps(row).encode() for row in rows))
    assert got == {
        "text": ("string", ["t", "t"]),
        "i": ("int64", [1, -1]),
        "u": ("uint64", [1, big]),
        "d": ("decimal128(38, 0)", [Decimal(huge), Decimal(-huge)]),
        "x": ("string", [str(10**50), "1"]),
        "f": ("double", [1.0, 1.5]),
        "g": ("string", [str(2**53 + 1), "0.5"]),
        "s": ("string", ["007", "2024-01-05"]),
        "b": ("bool", [True, None]),
        "n": ("null", [None, None]),
        "late": ("int64", [None, 1]),
    }


def test_values_of_several_kinds_become_strings(source):
    lines = [
        b'{"text":"t","v":%s}' % v
        for v in (b"1", b'"a"', b'"1"', b"true", b"null", b'{"k":[1.0,"\xc3\xa9"]}', b"2e400".replace(b"400", b"2"))
    ]
    assert columns_of(source, *lines)["v"] == ("string", ["1", "a", "1", "true", None, '{"k":[1.0,"é"]}', "200.0"])


def test_nested_values_keep_their_structure(source):
    got = columns_of(
        source,
        b'{"text":"t","o":{"a":1,"b":[]},"l":[1,2],"m":[{"x":1},{"y":"z"}],"mixed":[1,"a"]}',
        b'{"text":"t","o":{"c":null,"b":[18446744073709551616]},"l":[0.5],"m":[],"mixed":null}',
    )
    assert got["o"] == (
        "struct<a: int64, b: list<element: decimal128(38, 0)>, c: null>",
        [{"a": 1, "b": [], "c": None}, {"a": None, "b": [Decimal(2**64)], "c": None}],
    )
    assert got["l"] == ("list<element: double>", [[1.0, 2.0], [0.5]])
    assert got["m"][1] == [[{"x": 1, "y": None}, {"x": None, "y": "z"}], []]
    assert got["mixed"] == ("list<element: string>", [["1", "a"], None])


def test_empty_objects_are_kept_as_json_text(source):
    got = columns_of(source, b'{"text":"t","meta":{},"x":{"y":{}},"l":[{}],"some":{}}', b'{"text":"t","some":{"k":1}}')
    assert got["meta"] == ("string", ["{}", None])
    assert got["x"] == ("struct<y: string>", [{"y": "{}"}, None])
    assert got["l"] == ("list<element: string>", [["{}"], None])
    assert got["some"] == ("struct<k: int64>", [{"k": None}, {"k": 1}])


def test_deep_and_wide_values_are_kept_as_json_text(source):
    deep = json.dumps({"a": 1})
    for _ in range(40):
        deep = f'{{"d":{deep}}}'
    wide = [json.dumps({"text": "t", "m": {f"key {i}": i}, "ok": {"k": 1}}) for i in range(300)]
    got = columns_of(source, *(line.encode() for line in wide), f'{{"text":"t","deep":{deep}}}'.encode())
    assert got["m"] == ("string", [f'{{"key {i}":{i}}}' for i in range(300)] + [None])
    assert got["ok"][0] == "struct<k: int64>"
    kind, values = got["deep"]
    assert kind.count("struct") == 15
    value = values[-1]
    for _ in range(15):
        value = value["d"]
    assert json.loads(value)["d"]


def test_very_many_keys(source):
    lines = [json.dumps({"text": "t", **{f"o{j}": {f"k{i}": 1 for i in range(200)} for j in range(60)}}).encode()]
    got = columns_of(source, *lines)
    assert got["o1"][0] == "string", "over 10,000 keys in all: nested columns are text"
    write(source, json.dumps({"text": "t", **{f"k{i}": i for i in range(6000)}}).encode())
    label(source, source.with_name("out.jsonl"))
    with pytest.raises(OutputError, match="more different keys"):
        label(source, source.with_name("out2.parquet"))


def test_texts_that_are_no_strings_are_their_json_text(source):
    write(
        source,
        b'{"text":160}',
        b'{"text":{"a":[1.0,null]}}',
        b'{"text":null}',
        b'{"x":1}',
        b'{"text":true}',
        b'{"text":"160"}',
    )
    assert label(source, source.with_name("out.parquet")) == ["160", '{"a":[1.0,null]}', None, None, "true", "160"]
    column = pq.read_table(source.with_name("out.parquet")).column("text").to_pylist()
    assert column == ["160", '{"a":[1.0,null]}', None, None, "true", "160"]


def test_which_key_is_the_text(source):
    write(source, b'{"n":1,"body":"b"}', b'{"description":"d"}')
    assert label(source, source.with_name("out.jsonl")) == ["b", None]
    write(source, b'{"n":1,"a":"x","b":"y"}')
    with pytest.raises(UsageError, match=r"--text-column.*n \(int64\), a \(string\)"):
        open_tickets(str(source))


def test_keys_of_any_spelling_are_columns(source):
    keys = ["", "a.b", "a", "übersicht 日本", "x\0y", "New\nline", "__proto__"]
    write(source, json.dumps({"text": "t", **dict.fromkeys(keys, 1), "a": {"b": 2}}).encode())
    label(source, source.with_name("out.parquet"))
    assert set(keys) <= set(pq.ParquetFile(source.with_name("out.parquet")).schema_arrow.names)


# ------------------------------------------------------------ Parquet to JSONL


def test_parquet_values_are_rendered_exactly(tmp_path):
    from test_tickets_parquet import every_type

    pq.write_table(every_type(), tmp_path / "in.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    first, second, third = (
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()
    )
    assert all(value is None for key, value in second.items() if not key.startswith("label"))
    assert third["f16"] == "NaN"
    assert third["f32"] == "-Infinity"
    expected = {
        "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.1, "d128": "-1.20", "d256": "1" + "0" * 60, "date32": "2024-02-29",
        "t32": "01:02:03.004", "t64": "01:02:03.000004", "ts_ms": "2024-02-29T23:59:59.123",
        "ts_us": "2024-02-29T23:59:59.123456Z", "ts_ns": "1970-01-01T00:00:00.000000001Z", "took": 1, "bin": "/w==",
        "uuid": "00000000-0000-0000-0000-000000000007", "json": '{"a":1}', "list": [1, None], "fixed_list": [1, 2],
        "struct": {"a": 1, "b": {"c": ["x"]}}, "map": [{"key": "k", "value": 1}, {"key": "k", "value": None}],
        "dict": "b", "sev": "high", "label_score": 0.9,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected


def test_strings_that_are_not_utf8_and_years_beyond_text_are_rendered_without_loss(tmp_path):
    text = pa.array([b"ok", b"\xff"]).view(pa.string())
    far = pa.array([0, 2**62], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"text": text, "far": far}), tmp_path / "in.parquet")
    label(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    first, second = (json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines())
    assert (first["text"], second["text"]) == ("ok", {"base64": "/w=="})
    assert (first["far"], second["far"]) == ("1970-01-01T00:00:00.000Z", 2**62)


# ------------------------------------------------------------ other projects' files


def suite(name: str, pattern: str) -> list[str]:
    root = SHARED / "data" / name
    return sorted(str(p.relative_to(root)) for p in root.rglob(pattern) if p.is_file()) or ["absent"]


def test_the_json_test_suite_line_by_line():
    """What must parse does, what must not is refused, and nothing crashes; each value is Python's own."""
    names = suite("json-testsuite", "*.json")
    shared(f"data/json-testsuite/{names[0]}")
    for name in names:
        data = shared(f"data/json-testsuite/{name}").read_bytes()
        if b"\n" in data.strip(b"\n"):
            continue  # several lines: tried as a file below
        line = b'{"text":"t","v":' + data.strip(b"\n") + b"}"
        kind = Path(name).name[:2]
        try:
            record = parse_record(line)
        except BadRecordError:
            assert kind != "y_", name
            continue
        if kind == "n_":  # wrapping mends a few of them: 'v": , "x": 1' style fragments
            assert json.loads(line) == record, name
        assert record == json.loads(line), name


def test_the_json_test_suite_and_duckdbs_files_as_files(tmp_path):
    """Every file ends in tickets or in one line of refusal; what is carried equals what Python's parser reads."""
    accepted = 0
    for collection in ("json-testsuite", "duckdb-json"):
        names = suite(collection, "*")
        shared(f"data/{collection}/{names[0]}")
        for name in names:
            data = shared(f"data/{collection}/{name}").read_bytes()
            source = tmp_path / ("in.jsonl.gz" if name.endswith(".gz") else "in.jsonl")
            source.write_bytes(data)
            plain = gzip.decompress(data) if name.endswith(".gz") else data
            lines = [line for line in plain.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
            options: dict[str, list[str]] = {}
            try:
                open_tickets(str(source)).close()
            except UsageError:  # sound records without a clear text: take any key
                keys = sorted({key for line in lines for key in json.loads(line)})
                if not keys:
                    continue
                options["text_columns"] = keys[:1]
            except InputError as error:
                assert_one_line(error)
                continue
            accepted += 1
            label(source, tmp_path / "out.jsonl", **options)
            written = (tmp_path / "out.jsonl").read_bytes().split(b"\n")[:-1]
            assert len(written) == len(lines), name
            for before, after in zip(lines, written, strict=True):
                record = json.loads(after)
                assert {k: v for k, v in record.items() if k not in OUTPUT.names} == json.loads(before), name
            label(source, tmp_path / "out.parquet", **options)
    assert accepted > 50


# ------------------------------------------------------------ any records at all

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.dictionaries(TEXTS.filter(lambda k: not k.startswith("label")), VALUES, max_size=4), min_size=1, max_size=6
)
STYLES = st.sampled_from([{"separators": (",", ":")}, {}, {"ensure_ascii": False}])


def means_the_same(value, stored) -> bool:
    """Say whether a stored Arrow value is the JSON value by the documented rules."""
    if isinstance(stored, str) and not isinstance(value, str):
        return json.loads(stored) == value and (value != {} or stored == "{}")
    if value is None or stored is None:
        return value is stored
    if isinstance(value, dict):
        return (
            isinstance(stored, dict)
            and all(means_the_same(value.get(k), v) for k, v in stored.items())
            and set(value) <= set(stored)
        )
    if isinstance(value, list):
        return len(value) == len(stored) and all(map(means_the_same, value, stored))
    if isinstance(value, bool) or isinstance(stored, bool):
        return value is stored
    if isinstance(value, int):
        return int(stored) == value and stored == value
    return value == stored


@settings(max_examples=150, deadline=None)
@given(RECORDS, STYLES)
def test_any_records_survive_in_both_formats(tmp_path_factory, records, style):
    folder = tmp_path_factory.mktemp("any")
    records = [{**record, "text": "t"} for record in records]
    lines = [json.dumps(record, **style).encode() for record in records]
    write(folder / "in.jsonl", *lines)
    label(folder / "in.jsonl", folder / "out.jsonl")
    written = (folder / "out.jsonl").read_bytes().split(b"\n")[:-1]
    assert written == [line[:-1] + added(i) for i, line in enumerate(lines)]
    label(folder / "in.jsonl", folder / "out.parquet")
    back = pq.ParquetFile(folder / "out.parquet").read().to_pylist()
    assert len(back) == len(records)
    for record, row in zip(records, back, strict=True):
        assert set(record) <= set(row)
        for key, stored in row.items():
            if key not in OUTPUT.names:
                assert means_the_same(record.get(key), stored), key


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.data())
def test_cutting_members_out_leaves_the_others(record, data):
    keys = frozenset(data.draw(st.lists(st.sampled_from(sorted(record)), max_size=3))) if record else frozenset()
    line = json.dumps(
        record,
        ensure_ascii=data.draw(st.booleans()),
        separators=data.draw(st.sampled_from([(",", ":"), (" , ", " : ")])),
    ).encode()
    cut = without_keys(line, keys)
    assert json.loads(cut) == {k: v for k, v in record.items() if k not in keys}
    assert json.loads(with_members(cut, b'"new":1')) == {**json.loads(cut), "new": 1}


# ------------------------------------------------------------ size

MEMORY_CODE = """
import re, sys
from pathlib import Path
from ticket_etl.tickets import check_output, open_tickets, write_labelled
from tickets_helpers import OUTPUT, labelled
source, out = sys.argv[1], Path(sys.argv[2])
with open_tickets(source) as tickets:
    for batch in tickets.texts():
        pass
    check_output(tickets, out, output_columns=OUTPUT)
    write_labelled(tickets, out, labelled(tickets.num_rows, 4096))
# Not getrusage: its peak includes that of the process which started this one.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def write_rows(path: Path, num_rows: int) -> None:
    text = "the export page shows error 500 and I was billed twice " * 4
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            file.writelines(f'{{"id":{i},"text":"{i} {text}","tags":["a","b{i % 9}"]}}\n' for i in range(num_rows))
        return
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_rows, 50_000):
            rows = range(start, min(start + 50_000, num_rows))
            writer.write_table(pa.table([rows, [f"{i} {text}" for i in rows]], schema=schema))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["in.parquet>out.parquet", "in.jsonl>out.jsonl", "in.jsonl>out.parquet", "in.parquet>out.jsonl"]
)
def test_memory_does_not_grow_with_the_rows(tmp_path, kind):
    source, out = (tmp_path / name for name in kind.split(">"))
    peaks = []
    for num_rows in (100_000, 500_000):
        write_rows(source, num_rows)
        done = run_limited(MEMORY_CODE, str(source), str(out), gibibytes=8, timeout=300)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < 1.10 * peaks[0], f"peak memory {peaks[0]:.0f} MB at 100,000 rows, {peaks[1]:.0f} MB at 500,000"


@pytest.mark.slow
def test_over_two_gibibytes_of_text_in_one_column(tmp_path):
    schema = pa.schema([("text", pa.string()), ("body", pa.string())])
    with pq.ParquetWriter(tmp_path / "in.parquet", schema, compression="zstd") as writer:
        body = pa.array(["x" * (1 << 20)] * 500)
        for group in range(5):
            writer.write_table(pa.table({"text": [f"{group} {i}" for i in range(500)], "body": body}, schema=schema))
    done = run_limited(
        MEMORY_CODE, str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet"), gibibytes=8, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1 << 20, f"{int(done.stdout) >> 10} MB"
    back = pq.ParquetFile(tmp_path / "out.parquet")
    assert back.metadata.num_rows == 2500
    sizes = {len(v.as_buffer()) for batch in back.iter_batches(8, columns=["body"]) for v in batch.column(0)}
    assert sizes == {1 << 20}


def test_check_output_refuses_before_the_work(source):
    write(source, b'{"text":"a","label":1}')
    with open_tickets(str(source)) as tickets, pytest.raises(UsageError, match="--output-prefix"):
        check_output(tickets, source.with_name("out.jsonl"), output_columns=OUTPUT)
    with open_tickets(str(source)) as tickets:
        assert all_texts(tickets) == ["a"]
