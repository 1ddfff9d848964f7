"""`evaluate`, abstaining and drift through the real command."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    Outcome,
    assert_done,
    assert_refused,
    clean_environment,
    digest,
    names_in,
    run,
    run_warm,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def gold_tickets(tmp_path: Path) -> Path:
    """Seven tickets with gold labels, one of them without text, one without gold, one of a label that there is not."""
    rows = {
        "text": ["billed twice", "cannot log in", "invoice", None, "error 500", "the export fails", "hello"],
        "gold": ["billing", "login", "billing", "bug", None, "bug", "other"],
    }
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "in.parquet"
    pq.write_table(pa.table(rows), path)
    return path


def report_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.with_name(out.name + ".report.json").read_text(encoding="utf-8"))
    return found


def evaluation(tmp_path: Path, *arguments: object, data: bytes | None = None) -> tuple[Outcome, dict[str, Any]]:
    """The command's outcome and its JSON; what it needs a temporary folder for is gone when it ends."""
    (tmp_path / "temporary").mkdir(exist_ok=True)
    environment = clean_environment(TMPDIR=str(tmp_path / "temporary"))
    path = tmp_path / "evaluation.json"
    command = ("evaluate", *arguments, "--json", path)
    piped = data is not None
    outcome = (
        run(*command, environment=environment, data=data) if piped else run_warm(*command, environment=environment)
    )
    assert outcome.code == 0, outcome.err
    assert not [name for name in names_in(tmp_path / "temporary") if name.startswith("ticket-etl")]
    return outcome, json.loads(path.read_text(encoding="utf-8"))


def test_scored_file_and_scoring_give_the_same(gold_tickets: Path, out: Path, quick: list[str], tmp_path: Path) -> None:
    """Whether the labels are in the file already, or are made for the evaluation; from a pipe as well."""
    assert_done(run_warm("classify", gold_tickets, out, *quick))
    said, scored = evaluation(tmp_path, out, "--gold", "gold", *quick)
    assert said.err == ""
    before = digest(gold_tickets)
    said, made = evaluation(tmp_path, gold_tickets, "--gold", "gold", *quick)
    assert "has no label, label_score, label_margin, label_status; labelling it now" in said.err
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in pq.read_table(gold_tickets).to_pylist())
    _, piped = evaluation(tmp_path, "-", "--gold", "gold", *quick, data=lines)
    assert made.pop("model") == piped.pop("model")
    assert scored.pop("model") is None
    for each in (scored, made, piped):
        each.pop("input")
    assert scored == made == piped
    assert scored["rows"] == {
        "read": 7,
        "evaluated": 5,
        "no_gold": 1,
        "abstained": 0,
        "empty": 1,
        "failed": 0,
        "quarantined": 0,
    }
    assert scored["gold_outside_labels"] == {"other": 1}
    assert digest(gold_tickets) == before
    assert names_in(gold_tickets.parent) == {gold_tickets.name}
    labels, gold = (pq.read_table(out)[name].to_pylist() for name in ("label", "gold"))
    assert scored["accuracy"]["value"] * 5 == pytest.approx(sum(a == b for a, b in zip(labels, gold, strict=True)))


def test_input_that_has_some_of_the_columns_is_scored(gold_tickets: Path, quick: list[str], tmp_path: Path) -> None:
    """A column `label` that classify did not write may be the gold one."""
    table = pq.read_table(gold_tickets)
    pq.write_table(table.rename_columns(["text", "label"]), gold_tickets)
    _, found = evaluation(tmp_path, gold_tickets, "--gold", "label", *quick)
    assert (found["rows"]["evaluated"], found["gold"]) == (5, "label")


def test_abstaining(gold_tickets: Path, out: Path, quick: list[str], tmp_path: Path) -> None:
    """Labels below a threshold do not stand, all else stays; other thresholds need no new scores."""
    cache = ["--cache", tmp_path / "labels.sqlite"]
    assert_done(run_warm("classify", gold_tickets, out, *quick, *cache))
    plain = pl.read_parquet(out)
    threshold = sorted(plain["label_score"].drop_nulls())[3]
    outcome = run_warm("classify", gold_tickets, out, *quick, *cache, "--min-score", threshold)
    assert_done(outcome)
    uncertain = pl.col("label_score") < threshold
    label = pl.when(uncertain).then(None).otherwise("label").alias("label")
    status = pl.when(uncertain).then(pl.lit("abstained")).otherwise("label_status").alias("label_status")
    assert pl.read_parquet(out).equals(plain.with_columns(label, status))
    rows = report_of(out)["rows"]
    assert (rows["read"], rows["labelled"], rows["abstained"], rows["empty"]) == (7, 3, 3, 1)
    assert (rows["scored"], rows["cached"]) == (0, 6)
    assert "7 read, 3 labelled, 3 abstained, 1 empty" in outcome.err
    _, found = evaluation(tmp_path, out, "--gold", "gold")
    assert found["rows"]["evaluated"] + found["rows"]["abstained"] == 5
    assert_done(run_warm("classify", gold_tickets, out, *quick, *cache, "--min-margin", 99, "--fallback-label", "?"))
    everything = pl.read_parquet(out)
    assert everything["label"].to_list() == ["?", "?", "?", None, "?", "?", "?"]
    assert everything["label_margin"].equals(plain["label_margin"])


def test_drift_since_last_night(tmp_path: Path, out: Path, quick: list[str]) -> None:
    """The report that the run is about to replace is the one of last night; the same tickets have not drifted."""
    tickets = tmp_path / "in.parquet"
    texts = [f"ticket {number} on {'billing' if number % 2 else 'errors'}" for number in range(40)]
    pq.write_table(pa.table({"text": texts}), tickets)
    report_path = out.with_name(out.name + ".report.json")
    first = run_warm("classify", tickets, out, *quick, "--compare-report", report_path)
    assert_done(first)
    assert "nothing to compare with yet" in first.err
    assert report_of(out)["drift"] is None
    calm = run_warm("classify", tickets, out, *quick, "--compare-report", report_path, "--quiet")
    assert_done(calm)
    assert calm.err == ""
    drift = report_of(out)["drift"]
    assert (drift["labels"]["psi"], drift["scores"]["psi"], drift["changed"]) == (0, 0, [])
    report = report_of(out)
    moved = {"billing": 0, "bug": 0, "login": 0} | {min(report["labels"], key=report["labels"].__getitem__): 40}
    report_path.write_text(json.dumps(report | {"labels": moved}), encoding="utf-8")
    warned = run_warm("classify", tickets, out, *quick, "--compare-report", report_path, "--quiet")
    assert_done(warned)
    assert warned.err.startswith(f"ticket-etl: labels have shifted since {report_path} of ")
    assert warned.err.count("\n") == 1
    assert report_of(out)["drift"]["labels"]["shifted"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--min-score", "nan"], "--min-score nan is not a probability"),
        (["--min-margin", "inf"], "--min-margin inf is not a distance"),
        (["--fallback-label", "unsure"], "set --min-score or --min-margin too"),
        (["--min-score", "0.5", "--fallback-label", " x"], "white space at its ends"),
        (["--min-score", "0.5", "--fallback-label", "\udcff"], "is not UTF-8"),
        (["--compare-report", "none.json"], "cannot read --compare-report none.json"),
    ],
)
def test_refused_before_anything_is_read(options: list[Any], says: str, out: Path, tmp_path: Path) -> None:
    """Not even IN and the model need be there."""
    assert_refused(run_warm("classify", tmp_path / "none.parquet", out, "--model", "none", *options), 2, says)
    assert names_in(out.parent) == set()
