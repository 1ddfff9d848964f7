"""Drift since an earlier run: shifts are seen, chance is not, and a file that is no report is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.test_report import NAMES, report_of, strict, tally_of, verdict_of
from ticket_etl.errors import UsageError
from ticket_etl.label_drift import (
    SHIFT,
    compare_runs,
    drift_warnings,
    judge,
    load_earlier_run,
    stability_index,
)
from ticket_etl.report import RunReport
from ticket_etl.verdicts import ABSTAINED, OK

counts = hnp.arrays(np.int64, 5, elements=st.integers(0, 10_000))


def run_of(*labels: int, abstained: int = 0, score: float = 0.85, **changes: Any) -> RunReport:
    """A run with so many tickets of each label."""
    verdicts = [verdict_of(OK, label, score) for label, number in enumerate(labels) for _ in range(number)]
    verdicts += [verdict_of(ABSTAINED, 0, score)] * abstained
    return dataclasses.replace(report_of(tally_of(verdicts)), **changes)


def compare(folder: Path, before: RunReport, after: RunReport) -> dict[str, Any]:
    path = folder / "old.report.json"
    path.write_text(before.to_json(), encoding="utf-8")
    drift = compare_runs(load_earlier_run(path), after)
    assert strict(json.dumps(drift)) == drift
    return drift


# The measure


def test_index_is_that_of_the_books() -> None:
    """Sum of (p - q) ln(p / q), here by hand, with half a ticket more in each bin."""
    before, after = np.array([30, 60, 10]), np.array([50, 30, 20])
    p, q = (before + 0.5) / 101.5, (after + 0.5) / 101.5
    expected = sum((a - b) * np.log(a / b) for a, b in zip(p, q, strict=True))
    assert stability_index(before, after) == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(counts, counts)
def test_index_is_a_distance_without_infinities(before: np.ndarray, after: np.ndarray) -> None:
    """Never negative, the same in both directions, 0 for equal histograms; empty bins change nothing."""
    index = stability_index(before, after)
    assert np.isfinite(index)
    assert index >= 0
    assert index == pytest.approx(stability_index(after, before))
    assert stability_index(before, before) == 0
    assert index == pytest.approx(stability_index(np.append(before, 0), np.append(after, 0)))


def test_index_of_many_pairs() -> None:
    """Over the last axis, each pair as if it stood alone."""
    before, after = np.array([[30, 60, 10], [5, 0, 0]]), np.array([[50, 30, 20], [0, 0, 9]])
    alone = [float(stability_index(one, other)) for one, other in zip(before, after, strict=True)]
    assert stability_index(before, after).tolist() == pytest.approx(alone)


# The judgement


@pytest.mark.parametrize(("before", "after"), [(5, 5), (30, 30), (30, 3_000), (300, 300), (3_000, 3_000)])
def test_chance_is_no_shift(before: int, after: int) -> None:
    """Of 100 pairs of runs drawn from the same shares, whatever their sizes, hardly one is taken for a shift."""
    random = np.random.default_rng(before + after)
    shares = random.dirichlet(np.ones(8))
    pairs = [(random.multinomial(before, shares), random.multinomial(after, shares)) for _ in range(100)]
    assert sum(judge(*pair)["shifted"] for pair in pairs) <= 2


def test_small_runs_would_shift_by_the_rule_of_thumb_alone() -> None:
    """Why there is a bound for chance: of two runs of 30 tickets with equal shares, PSI is mostly over 0.1."""
    random = np.random.default_rng(0)
    pairs = [random.multinomial(30, np.full(8, 1 / 8), size=2) for _ in range(20)]
    assert sum(judge(*pair)["psi"] >= SHIFT for pair in pairs) > 15


@pytest.mark.parametrize("size", [300, 30_000])
def test_shift_is_seen(size: int) -> None:
    """A quarter of the tickets going to another label."""
    random = np.random.default_rng(size)
    before = random.multinomial(size, [0.5, 0.3, 0.1, 0.1])
    after = random.multinomial(size, [0.25, 0.3, 0.35, 0.1])
    assert judge(before, after)["shifted"]


def test_large_runs_do_not_shift_by_a_trifle() -> None:
    """Two points of a hundred million tickets are certain, and too little to warn of."""
    judged = judge(np.array([50_000_000, 50_000_000]), np.array([52_000_000, 48_000_000]))
    assert judged["psi"] > judged["chance"]
    assert not judged["shifted"]


def test_judgement_is_reproducible() -> None:
    before, after = np.array([30, 60, 10]), np.array([50, 30, 20])
    assert judge(before, after) == judge(before, after)


# Runs


def test_same_run_has_not_drifted(tmp_path: Path) -> None:
    drift = compare(tmp_path, run_of(40, 50, 10), run_of(40, 50, 10))
    assert drift["labels"]["psi"] == drift["scores"]["psi"] == 0
    assert drift["changed"] == []
    assert drift["tickets"] == {"earlier": 100, "now": 100}
    assert drift["label_shares"]["bug"] == {"earlier": 0.5, "now": 0.5}
    assert drift_warnings(drift) == []


def test_warning_names_the_labels_that_moved_most(tmp_path: Path) -> None:
    """Labels by the change of their share, however small they are; scores apart from labels."""
    drift = compare(tmp_path, run_of(500, 400, 100), run_of(100, 450, 450))
    assert drift["labels"]["shifted"]
    assert not drift["scores"]["shifted"]
    (line,) = drift_warnings(drift)
    assert line.startswith("labels have shifted since ")
    assert "billing 50.0% -> 10.0%, R\u00fcckgabe 10.0% -> 45.0%, bug 40.0% -> 45.0%" in line
    assert "PSI 1." in line
    assert "changed" not in line


def test_scores_shift_apart_from_labels(tmp_path: Path) -> None:
    """The same labels, less certain: what a new kind of ticket looks like first."""
    drift = compare(tmp_path, run_of(100, 100, 100, score=0.95), run_of(100, 100, 100, score=0.45))
    assert (drift["labels"]["shifted"], drift["scores"]["shifted"]) == (False, True)
    assert [line.split()[0] for line in drift_warnings(drift)] == ["scores"]


def test_abstained_tickets_are_a_share_of_their_own(tmp_path: Path) -> None:
    drift = compare(tmp_path, run_of(100, 100, 100), run_of(50, 50, 50, abstained=150))
    assert drift["abstained_share"] == {"earlier": 0.0, "now": 0.5}
    assert drift["labels"]["shifted"]
    assert not drift["scores"]["shifted"]
    assert "(abstained) 0.0% -> 50.0%" in drift_warnings(drift)[0]


def test_labels_that_one_run_does_not_know(tmp_path: Path) -> None:
    """They have a share of 0 there."""
    before = run_of(100, 100, labels={"billing": 100, "old": 100})
    after = run_of(100, 100, labels={"billing": 100, "new": 100})
    drift = compare(tmp_path, before, after)
    assert drift["label_shares"]["old"] == {"earlier": 0.5, "now": 0.0}
    assert drift["label_shares"]["new"] == {"earlier": 0.0, "now": 0.5}
    assert drift["labels"]["shifted"]


def test_run_without_labels_is_not_judged(tmp_path: Path) -> None:
    """A night without tickets is no drift."""
    for before, after in ((run_of(), run_of(300)), (run_of(300), run_of()), (run_of(), run_of())):
        drift = compare(tmp_path, before, after)
        assert drift["labels"] == drift["scores"] == {"psi": None, "chance": None, "shifted": False}
        assert drift_warnings(drift) == []


def test_what_else_changed_is_said(tmp_path: Path) -> None:
    """Another model or threshold explains a shift better than the tickets do; another input explains nothing."""
    before = run_of(300, 0, 0, fingerprint={"model": "a", "input": "x", "dtype": "float32"})
    now = run_of(0, 0, 300, fingerprint={"model": "b", "input": "y", "dtype": "float32"}, settings={"min_score": 0.5})
    drift = compare(tmp_path, before, now)
    assert drift["changed"] == ["model", "min score"]
    assert drift_warnings(drift)[0].endswith("; changed since then: model, min score")


def test_scores_in_other_bins_are_not_compared(tmp_path: Path) -> None:
    before = run_of(300, score_histogram=[{"from": 0.0, "to": 1.0, "count": 300}])
    drift = compare(tmp_path, before, run_of(300, score=0.1))
    assert drift["scores"] == {"psi": None, "chance": None, "shifted": False}
    assert drift["labels"]["psi"] == 0


# The report of the earlier run


def test_missing_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read --compare-report .*none\.json: No such file"):
        load_earlier_run(tmp_path / "none.json")


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read --compare-report"):
        load_earlier_run(tmp_path)


def foreign() -> dict[str, bytes]:
    """Files that are no reports, and reports that were tampered with."""
    report = json.loads(run_of(1, 2, 3).to_json())
    changed = {
        "no labels": {key: value for key, value in report.items() if key != "labels"},
        "labels as a list": report | {"labels": list(NAMES)},
        "a count below zero": report | {"labels": {"bug": -1}},
        "a count that is no integer": report | {"labels": {"bug": 1.5}},
        "a count that is a boolean": report | {"labels": {"bug": True}},
        "a count beyond counting": report | {"labels": {"bug": 10**30}},
        "bins without counts": report | {"score_histogram": [{"from": 0, "to": 1}]},
        "rows as a number": report | {"rows": 3},
        "no fingerprint": report | {"fingerprint": None},
        "of bench": {"model": "m", "rows": [{"strategy": "naive"}]},
        "a list": [1, 2],
        "null": None,
    }
    texts = {name: json.dumps(value).encode() for name, value in changed.items()}
    return texts | {"not JSON": b"PAR1", "not UTF-8": b'{"labels": "\xff"}', "empty": b"", "deep": b"[" * 100_000}


@pytest.mark.parametrize("name", list(foreign()))
def test_file_that_is_no_report(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(foreign()[name])
    with pytest.raises(UsageError, match=r"x\.json is not a report of ticket-etl classify"):
        load_earlier_run(tmp_path / "x.json")


def test_report_of_a_version_that_knew_no_abstaining(tmp_path: Path) -> None:
    report = json.loads(run_of(1, 2, 3).to_json())
    del report["rows"]["abstained"], report["drift"]
    (tmp_path / "old.json").write_text(json.dumps(report), encoding="utf-8")
    earlier = load_earlier_run(tmp_path / "old.json")
    assert (earlier.abstained, earlier.labels["bug"]) == (0, 2)
