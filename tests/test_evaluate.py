"""Evaluation: metrics are those of scikit-learn and of their definitions, and every ticket is counted once."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, f1_score

from tests.test_report import strict
from ticket_etl.cli import run_command
from ticket_etl.gold import MAX_NAMES
from ticket_etl.metrics import KEPT_SHARES, calibration, coverage, label_metrics, resample

NAMES = ("billing", "bug", "R\u00fcckgabe", "login")
TEXT = pa.string()
quickly = settings(max_examples=25, deadline=None)
index_pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)
certain = st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=60)


def indices(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def metrics_of(gold: Any, given: Any) -> dict[str, Any]:
    used = sorted({*gold, *given})
    found = label_metrics(
        indices([used.index(at) for at in gold]),
        indices([used.index(at) for at in given]),
        [NAMES[at] for at in used],
        0,
    )
    assert strict(json.dumps(found, allow_nan=False)) == found
    return found


# Labels


@quickly
@given(index_pairs)
def test_accuracy_and_macro_f1(pairs: list[tuple[int, int]]) -> None:
    """Macro-F1 is over the labels that occur in gold; intervals hold the value's neighbourhood and stay in 0..1."""
    gold, answers = zip(*pairs, strict=True)
    found = metrics_of(gold, answers)
    expected = f1_score(gold, answers, labels=sorted(set(gold)), average="macro", zero_division=0.0)
    assert found["accuracy"]["value"] == pytest.approx(accuracy_score(gold, answers))
    assert found["macro_f1"]["value"] == pytest.approx(expected)
    assert found["macro_f1"]["labels"] == len(set(gold))
    for estimate in (found["accuracy"], found["macro_f1"]):
        assert 0 <= estimate["low"] <= estimate["high"] <= 1


@quickly
@given(index_pairs)
def test_figures_of_each_label(pairs: list[tuple[int, int]]) -> None:
    """By counting; None where there is nothing to divide by. The most frequent gold labels come first."""
    gold, answers = zip(*pairs, strict=True)
    found = metrics_of(gold, answers)
    assert [row["label"] for row in found["labels"]] == found["confusion"]["labels"]
    assert [row["support"] for row in found["labels"]] == sorted(
        (row["support"] for row in found["labels"]), reverse=True
    )
    for row in found["labels"]:
        right = sum(NAMES[a] == NAMES[b] == row["label"] for a, b in pairs)
        support, times = sum(NAMES[a] == row["label"] for a in gold), sum(NAMES[b] == row["label"] for b in answers)
        assert (row["support"], row["given"]) == (support, times)
        assert row["precision"] == (pytest.approx(right / times) if times else None)
        assert row["recall"] == (pytest.approx(right / support) if support else None)
        assert row["f1"]["value"] == pytest.approx(2 * right / (support + times))
    names, counts = found["confusion"]["labels"], found["confusion"]["counts"]
    for row_name, row in zip(names, counts, strict=True):
        for name, count in zip(names, row, strict=True):
            assert count == sum(NAMES[a] == row_name and NAMES[b] == name for a, b in pairs)


def test_resamples_are_those_of_tickets() -> None:
    """Drawing cells of the confusion matrix is drawing tickets: both ways give the same spread, within its error."""
    random = np.random.default_rng(0)
    gold = random.integers(0, 3, 150)
    answers = np.where(random.random(150) < 0.6, gold, random.integers(0, 3, 150))
    confusion = np.zeros((3, 3), dtype=np.int64)
    np.add.at(confusion, (gold, answers), 1)
    accuracies, macros, f1s = resample(confusion, seed=1)
    drawn = [random.integers(0, 150, 150) for _ in range(400)]
    by_ticket = [
        [accuracy_score(gold[rows], answers[rows]) for rows in drawn],
        [f1_score(gold[rows], answers[rows], average="macro") for rows in drawn],
        [f1_score(gold[rows], answers[rows], average=None)[1] for rows in drawn],
    ]
    for ours, theirs in zip((accuracies, macros, f1s[:, 1]), by_ticket, strict=True):
        assert ours.mean() == pytest.approx(np.mean(theirs), abs=0.008)
        assert ours.std() == pytest.approx(np.std(theirs), rel=0.15)


def test_interval_covers_the_true_accuracy() -> None:
    """Of 40 samples of 100 tickets, of which 70% are right, some 95% have the truth in their interval."""
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(40):
        wrong = indices(random.random(100) > 0.7)
        accuracy = label_metrics(indices(np.zeros(100)), wrong, ("right", "wrong"), seed=1)["accuracy"]
        inside += accuracy["low"] <= 0.7 <= accuracy["high"]
    assert inside == pytest.approx(38, abs=2)


def test_seed_decides_the_intervals_alone() -> None:
    gold, answers = indices([0, 1, 2, 0, 1, 2, 0, 0]), indices([0, 1, 1, 0, 2, 2, 1, 0])
    first, again, other = (label_metrics(gold, answers, NAMES[:3], seed) for seed in (1, 1, 2))
    assert first == again
    assert first["accuracy"]["value"] == other["accuracy"]["value"]
    assert first["macro_f1"] != other["macro_f1"]


# Calibration and coverage


@quickly
@given(certain)
def test_calibration_is_scikit_learns_curve(tickets: list[tuple[float, bool]]) -> None:
    """Share and mean score of each occupied bin; the error is their mean distance, weighted by tickets."""
    scores, correct = np.array([score for score, _ in tickets], np.float32), np.array([right for _, right in tickets])
    on_edge = np.isin(scores, np.linspace(0, 1, 11).astype(np.float32)[1:-1])
    scores = np.where(on_edge, scores + np.float32(0.01), scores)  # the two disagree on edges alone
    found = calibration(scores, correct, seed=0)
    rates, means = calibration_curve(correct, scores, n_bins=10)
    occupied = [row for row in found["bins"] if row["tickets"]]
    assert [row["accuracy"]["value"] for row in occupied] == pytest.approx(rates.tolist())
    assert [row["mean_score"] for row in occupied] == pytest.approx(means.tolist(), abs=1e-6)
    weights = [row["tickets"] / len(tickets) for row in occupied]
    assert found["expected_calibration_error"] == pytest.approx(np.abs(rates - means) @ weights, abs=1e-6)
    assert sum(row["tickets"] for row in found["bins"]) == len(tickets)


def test_scores_on_the_edges_of_bins() -> None:
    """A bin holds its lower edge; 1, and what rounding makes of it, is in the last one."""
    found = calibration(np.array([0.0, 0.1, 0.95, 1.0, 1.0000001], np.float32), np.ones(5, bool), seed=0)
    assert [row["tickets"] for row in found["bins"]] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 3]


@quickly
@given(certain, st.integers(0, 20))
def test_coverage_is_what_the_thresholds_keep(tickets: list[tuple[float, bool]], unlabelled: int) -> None:
    """As classify applies them: labels that reach the threshold stand, of equal ones all or none."""
    scores, correct = np.array([score for score, _ in tickets], np.float32), np.array([right for _, right in tickets])
    curve = coverage(scores, correct, len(tickets) + unlabelled, seed=0)
    assert curve[0]["labelled"] == len(tickets)
    thresholds = [row["threshold"] for row in curve]
    assert thresholds == sorted(set(thresholds))
    for row in curve:
        stands = scores >= np.float32(row["threshold"])
        assert row["labelled"] == stands.sum()
        assert row["coverage"] == stands.sum() / (len(tickets) + unlabelled)
        assert row["accuracy"]["value"] == pytest.approx(correct[stands].mean())
    assert any(row["labelled"] >= KEPT_SHARES[-1] * len(tickets) for row in curve)


# Files


@pytest.fixture
def scored(tmp_path: Path) -> Callable[..., Path]:
    """A file as classify writes it, in which each row is (gold, label, score, margin, status)."""

    def write(
        rows: list[tuple[Any, ...]], name: str = "scored.parquet", prefix: str = "", gold: pa.DataType = TEXT
    ) -> Path:
        path = tmp_path / name
        columns = ("gold", *(prefix + each for each in ("label", "label_score", "label_margin", "label_status")))
        kinds = (gold, pa.string(), pa.float32(), pa.float32(), pa.string())
        values = zip(*rows, strict=True) if rows else [()] * 5
        table = pa.table(
            [pa.array(value, kind) for value, kind in zip(values, kinds, strict=True)], names=list(columns)
        )
        if name.endswith(".parquet"):
            pq.write_table(table, path)
        else:
            pl.DataFrame(pl.from_arrow(table)).write_ndjson(path)
        return path

    return write


ROWS = [
    ("bug", "bug", 0.9, 2.0, "ok"),
    ("bug", "billing", 0.6, 0.5, "truncated"),
    ("login", "billing", 0.7, 1.0, "ok"),
    ("other", "bug", 0.5, 0.1, "ok"),
    (None, "bug", 0.9, 2.0, "ok"),
    ("  ", None, None, None, "empty"),
    ("bug", None, None, None, "empty"),
    ("bug", None, None, None, "failed"),
    ("login", None, 0.4, 0.1, "abstained"),
    ("bug", "unsure", 0.4, 0.1, "abstained"),
]


def evaluate(*arguments: object, code: int = 0) -> None:
    assert run_command(["evaluate", *map(str, arguments)]) == code


def outcome_of(path: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    evaluate(path, "--gold", "gold", "--json", path.with_name("e.json"), *arguments, code=code)
    return strict(path.with_name("e.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["scored.parquet", "scored.jsonl"])
def test_every_ticket_is_counted_once(
    name: str, scored: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed tickets make the exit code 5, as for classify; the fallback label of an abstained ticket is no label."""
    found = outcome_of(scored(ROWS, name), code=5)
    assert found["rows"] == {
        "read": 10,
        "evaluated": 4,
        "no_gold": 2,
        "abstained": 2,
        "empty": 1,
        "failed": 1,
        "quarantined": 0,
    }
    assert found["with_gold"] == 8
    assert found["accuracy"]["value"] == 0.25
    assert found["macro_f1"]["value"] == pytest.approx((2 * 1 / 4 + 0 + 0) / 3)
    assert found["gold_never_given"] == {"login": 1, "other": 1}
    assert found["gold_outside_labels"] is None
    assert found["most_frequent"] == {"label": "bug", "share": 0.5}
    assert found["coverage"]["score"][0]["coverage"] == 0.5
    assert found["model"] is None
    text = capsys.readouterr().out
    assert "10 read, 4 evaluated, 2 no gold, 2 abstained, 1 empty, 1 failed" in text
    assert "over the 3 labels that occur in gold" in text
    assert "never given login (1), other (1)" in text
    assert "unsure" not in text


def test_gold_outside_the_label_set(
    scored: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the labels are named; its tickets count, as wrong."""
    labels = tmp_path / "labels.toml"
    labels.write_text("".join(f'[[label]]\nname = "{name}"\n' for name in ("bug", "billing", "login")), "utf-8")
    found = outcome_of(scored(ROWS), "--labels", labels, code=5)
    assert found["gold_outside_labels"] == {"other": 1}
    assert found["rows"]["evaluated"] == 4
    assert "not a label other (1)" in capsys.readouterr().out


def test_output_prefix(scored: Callable[..., Path]) -> None:
    assert outcome_of(scored(ROWS[:4], prefix="ai_"), "--output-prefix", "ai_")["accuracy"]["value"] == 0.25


def test_gold_that_is_not_text(scored: Callable[..., Path]) -> None:
    """A number is compared as it is written."""
    rows = [(7, "7", 0.9, 2.0, "ok"), (8, "7", 0.9, 2.0, "ok")]
    assert outcome_of(scored(rows, gold=pa.int64()))["accuracy"]["value"] == 0.5


def test_many_labels_show_their_confusions(scored: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A wide matrix is no help on a terminal; the JSON has it."""
    rows = [(f"label {at}", f"label {at - at % 2}", 0.9, 2.0, "ok") for at in range(30)]
    found = outcome_of(scored(rows))
    assert len(found["confusion"]["counts"]) == 30
    text = capsys.readouterr().out
    assert "the 15 most frequent of 15 pairs of gold and label" in text
    assert "Confusion: tickets" not in text


def test_label_that_is_called_gold(scored: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Its column does not take the place of the rows' names."""
    outcome_of(scored([("gold", "gold", 0.9, 2.0, "ok"), ("silver", "gold", 0.9, 2.0, "ok")]))
    matrix = capsys.readouterr().out.split("Confusion: tickets")[1].splitlines()
    assert [line.split() for line in matrix[2:5]] == [
        ["gold", "gold", "silver"],
        ["gold", "1", "0"],
        ["silver", "1", "0"],
    ]


def test_no_room_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert "set TMPDIR" in refusal(tmp_path / "in.parquet", "--gold", "gold", code=4, capsys=capsys)


def test_perfect_labels(scored: Callable[..., Path]) -> None:
    found = outcome_of(scored([(f"label {at % 20}", f"label {at % 20}", 1.0, 9.0, "ok") for at in range(100)]))
    assert found["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["macro_f1"]["value"] == 1.0
    assert found["calibration"]["expected_calibration_error"] == 0.0
    assert [row["threshold"] for row in found["coverage"]["margin"]] == [9.0]


def refusal(path: Path, *arguments: object, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    evaluate(path, *arguments, code=code)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ticket-etl: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("rows", "arguments", "code", "says"),
    [
        (
            ROWS,
            ("--gold", "truth"),
            2,
            "there is no column 'truth' to take as text; the columns are: gold (string), label",
        ),
        (ROWS, ("--gold", "label"), 2, "holds its own labels there"),
        ([], ("--gold", "gold"), 3, "nothing to evaluate (no rows); gold labels are in column 'gold'"),
        (ROWS[4:], ("--gold", "gold"), 3, "nothing to evaluate (2 no gold, 2 abstained, 1 empty, 1 failed)"),
        ([("a", "a", 0.9, 1.0, "fine")], ("--gold", "gold"), 3, "row 0 (the first is 0) has label_status 'fine'"),
        ([("a", "a", 0.9, 1.0, None)], ("--gold", "gold"), 3, "has label_status None"),
        (
            [ROWS[0], ("a", None, 0.9, 1.0, "ok")],
            ("--gold", "gold"),
            3,
            "row 1 (the first is 0) has label_status 'ok' w",
        ),
        ([("a", "a", None, 1.0, "ok")], ("--gold", "gold"), 3, "'ok' without label, probability and margin"),
        ([("a", "a", 90.0, 1.0, "ok")], ("--gold", "gold"), 3, "'ok' without label, probability and margin"),
        ([("a", "a", 0.9, float("nan"), "ok")], ("--gold", "gold"), 3, "'ok' without label, probability and margin"),
        ([(f"id {at}", "a", 0.9, 1.0, "ok") for at in range(MAX_NAMES + 1)], ("--gold", "gold"), 2, "over 1,000"),
    ],
)
def test_refusals(
    rows: list[tuple[Any, ...]],
    arguments: tuple[str, ...],
    code: int,
    says: str,
    scored: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = scored(rows)
    json_path = path.with_name("e.json")
    assert says in refusal(path, *arguments, "--json", json_path, code=code, capsys=capsys)
    assert not json_path.exists()


def test_label_column_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scored.parquet"
    columns = {"gold": ["a"], "label": [1], "label_score": [0.5], "label_margin": [1.0], "label_status": ["ok"]}
    pq.write_table(pa.table(columns), path)
    assert "column 'label' holds int64, not the strings" in refusal(path, "--gold", "gold", code=3, capsys=capsys)


def test_json_over_the_input(scored: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = scored(ROWS)
    before = path.read_bytes()
    message = refusal(path, "--gold", "gold", "--json", path, code=2, capsys=capsys)
    assert "--json and IN are the same file" in message
    assert path.read_bytes() == before


def test_json_that_cannot_be_written(scored: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = scored(ROWS)
    nowhere = path.with_name("none") / "e.json"
    assert "the folder of --json" in refusal(path, "--gold", "gold", "--json", nowhere, code=4, capsys=capsys)


def test_without_scikit_learn(
    scored: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr("ticket_etl.evaluate.find_spec", lambda name: None)
    message = refusal(scored(ROWS), "--gold", "gold", code=2, capsys=capsys)
    assert "evaluate needs scikit-learn: pip install 'ticket-etl[fit]'" in message
