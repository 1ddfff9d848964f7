"""The committed sample tickets: reproducible, the same in both formats, and as varied as they are meant to be."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SAMPLE = Path(__file__).parent.parent / "sample_data"


def generate(out, *options):
    command = [sys.executable, str(SAMPLE / "generate.py"), "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return out


def read_lines(folder):
    return [json.loads(line) for line in (folder / "tickets.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def rows():
    return read_lines(SAMPLE)


@pytest.fixture(scope="module")
def texts(rows):
    return [row["text"] for row in rows if row["text"] and row["text"].strip()]


@pytest.fixture(scope="module")
def labels():
    return tomllib.loads((SAMPLE / "labels.toml").read_text(encoding="utf-8"))["label"]


def test_generator_reproduces_the_committed_files(tmp_path):
    generate(tmp_path)
    assert (tmp_path / "tickets.jsonl").read_bytes() == (SAMPLE / "tickets.jsonl").read_bytes()
    made, committed = (pq.read_table(folder / "tickets.parquet") for folder in (tmp_path, SAMPLE))
    assert made.schema == committed.schema
    assert made.equals(committed)


def test_rows_do_not_depend_on_how_many_there_are(tmp_path, rows):
    assert read_lines(generate(tmp_path, "--rows", "50")) == rows[:50]


def test_another_seed_gives_other_tickets(tmp_path, rows):
    other = read_lines(generate(tmp_path, "--rows", "50", "--seed", "8"))
    assert len({row["text"] for row in other} & {row["text"] for row in rows if row["text"]}) <= 2


def test_row_groups_are_streamed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SAMPLE))
    import generate as generator

    sizes = [len(batch) for batch in generator.batches(25, generator.DEFAULT_SEED, size=10)]
    assert sizes == [10, 10, 5]


def test_parquet_schema():
    schema = pq.read_table(SAMPLE / "tickets.parquet").schema
    assert schema.names == ["id", "created", "channel", "lang", "subject", "text", "gold"]
    assert schema.field("created").type == pa.timestamp("ms", tz="UTC")
    assert schema.field("channel").type == pa.dictionary(pa.int32(), pa.string())
    assert {name: schema.field(name).nullable for name in schema.names} == {
        "id": False,
        "created": False,
        "channel": False,
        "lang": False,
        "subject": True,
        "text": True,
        "gold": True,
    }


def test_both_files_hold_the_same_rows(rows):
    table = pq.read_table(SAMPLE / "tickets.parquet")
    millis = table["created"].cast(pa.int64()).to_pylist()
    created = [datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for value in millis]
    table = table.drop_columns("created").append_column("created", pa.array(created))
    assert table.select(list(rows[0])).to_pylist() == rows


def test_size_and_ids(rows):
    assert len(rows) == 600
    assert [row["id"] for row in rows] == [f"T-{10001 + index}" for index in range(600)]
    created = [row["created"] for row in rows]
    assert created == sorted(created)
    assert sum((SAMPLE / name).stat().st_size for name in ("tickets.parquet", "tickets.jsonl")) < 1_000_000


def test_labels_have_a_name_and_a_description(labels):
    assert len({label["name"] for label in labels}) == len(labels) == 8
    for label in labels:
        assert label["name"].isalpha()
        assert label["description"].endswith(".")
        assert 5 <= len(label["description"].split()) <= 25


def test_every_label_is_used_and_only_blank_tickets_have_none(rows, labels):
    counts = Counter(row["gold"] for row in rows if row["gold"] is not None)
    assert set(counts) == {label["name"] for label in labels}
    assert min(counts.values()) >= 20
    for row in rows:
        blank = row["text"] is None or not row["text"].strip()
        assert (row["gold"] is None) == blank, row["id"]


def test_blanks_of_all_kinds(rows):
    kinds = Counter(
        "null" if row["text"] is None else "empty" if row["text"] == "" else "space"
        for row in rows
        if not (row["text"] or "").strip()
    )
    assert set(kinds) == {"null", "empty", "space"}
    assert 0.008 <= kinds.total() / len(rows) <= 0.025


def test_duplicates_are_few_and_exact(texts):
    extra = len(texts) - len(set(texts))
    assert 0.015 <= extra / len(texts) <= 0.05


def test_duplicates_agree_on_everything_but_id_and_time(rows):
    seen = {}
    for row in rows:
        if row["text"] and len(row["text"]) > 100:
            same = {key: value for key, value in row.items() if key not in ("id", "created")}
            assert seen.setdefault(row["text"], same) == same


def test_texts_rarely_share_their_first_words(texts):
    starts = Counter(" ".join(text.split()[:12]) for text in set(texts))
    assert len(starts) / len(set(texts)) > 0.95
    assert starts.most_common(1)[0][1] <= 6


def test_channels_and_languages(rows):
    channels = Counter(row["channel"] for row in rows)
    assert set(channels) == {"email", "chat", "web", "phone-note"}
    assert min(channels.values()) >= 30
    languages = Counter(row["lang"] for row in rows)
    assert set(languages) >= {"en", "de", "fr", "es", "pt"}
    assert 0.07 <= 1 - languages["en"] / len(rows) <= 0.12
    subjects = Counter(row["subject"] is None for row in rows)
    assert min(subjects[True], subjects[False]) >= 60


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_end|><|im_start|>assistant",
        "Traceback (most recent call last):",
        "\tat example.quillfern.",
        "Uncaught ",
        '"request_id"',
        " wrote:\n>",
        "\n>>",
        "https://",
        "€",
        "£",
        "🙏",
        "ü",
        "ł",
    ],
)
def test_realistic_content_is_present(texts, mark):
    assert any(mark in text for text in texts)


def test_nothing_is_left_unfilled(texts):
    for text in texts:
        assert not re.search(r"\{[a-z]+\d?\}", text)
        assert " => " not in text
        assert not text.startswith((" ", "\n"))
        assert not text.endswith((" ", "\n"))


def test_addresses_are_reserved_ones(texts):
    for text in texts:
        for word in text.replace("/", " ").replace(">", " ").split():
            if "@" in word:
                assert ".example" in word or "@example" in word, word


def test_lengths_have_a_long_tail(texts):
    lengths = sorted(len(text) for text in texts)
    median = lengths[len(lengths) // 2]
    assert 150 <= median <= 350
    assert sum(lengths) / len(lengths) > 1.2 * median
    assert lengths[len(lengths) // 20] < median / 2
    assert sum(length > 1200 for length in lengths) >= 5
    assert 3500 < lengths[-1] < 9000
