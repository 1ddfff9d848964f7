"""Counts of a run, and the report made from them: rows add up, JSON is strict, quantiles are those of the lengths."""

import dataclasses
import json
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_etl import report
from ticket_etl.collate import Layout
from ticket_etl.plan import Limits
from ticket_etl.prompt import Prompt
from ticket_etl.report import RunReport
from ticket_etl.report_html import render_page
from ticket_etl.strategies import STRATEGIES
from ticket_etl.tally import Tally, quantile
from ticket_etl.trie import build_trie
from ticket_etl.tuning import Tuning
from ticket_etl.verdicts import ABSTAINED, EMPTY, FAILED, OK, TRUNCATED, Verdicts, blank_verdicts

NAMES = ("billing", "bug", "R\u00fcckgabe")
SEQUENCES = ((1, 0), (2, 0), (3, 0))
PROMPT = Prompt(np.arange(50, dtype=np.int32), np.arange(4, dtype=np.int32), build_trie(SEQUENCES), SEQUENCES)

quickly = settings(max_examples=40, deadline=None)


def verdict_of(status: int, label: int = 0, score: float = 0.9, margin: float = 2.2) -> Verdicts:
    verdict = blank_verdicts(1, status)
    if status in (OK, TRUNCATED, ABSTAINED):
        verdict["label"], verdict["score"], verdict["margin"] = label, score, margin
    return verdict


def verdict_lists() -> st.SearchStrategy[list[Verdicts]]:
    floats = st.floats(0, 1, width=32)
    margins = st.one_of(st.floats(0, 100, width=32), st.sampled_from([0.0, 0.5, 8.0, float("inf")]))
    one = st.builds(
        verdict_of, st.sampled_from([OK, TRUNCATED, EMPTY, FAILED, ABSTAINED]), st.integers(0, 2), floats, margins
    )
    return st.lists(one, max_size=30)


def tally_of(verdicts: list[Verdicts], lengths: tuple[int, ...] = (), strategy: str = "bucketed+prefix") -> Tally:
    """A run that gave these verdicts, and scored tickets of these lengths."""
    tally = Tally(labels=len(NAMES))
    for part in verdicts:
        tally.count_verdicts(part)
    if lengths:
        count_run(tally, lengths, strategy)
    return tally


def count_run(tally: Tally, lengths: tuple[int, ...], strategy: str) -> None:
    """As the labeller counts a window."""
    tickets = [np.ones(length, dtype=np.int32) for length in lengths]
    layout = Layout(PROMPT, STRATEGIES[strategy].shares_prefix)
    limits = Limits(4, 300, layout.shared_tokens)
    planned = layout.lengths(tickets)
    tally.count_plan(STRATEGIES[strategy].planner(planned, limits), planned)
    tally.count_alternatives(tickets, PROMPT, limits)


def report_of(tally: Tally, strategy: str = "bucketed+prefix", quarantined: int = 0) -> RunReport:
    scores, margins = report.histograms(tally)
    return RunReport(
        version="1",
        started="2025-01-01T00:00:00+00:00",
        finished="2025-01-01T00:00:05+00:00",
        input="in.parquet",
        output="out.parquet",
        rows=report.row_counts(tally, quarantined),
        labels=dict(zip(NAMES, tally.label_counts.tolist(), strict=True)),
        seconds={"load": 1.25, "score": 3.0, "run": 5.0},
        throughput={
            "scoring_tickets_per_second": 12.5,
            "scoring_tokens_per_second": 1234.5,
            "run_tickets_per_second": 8.0,
        },
        tokens=report.token_counts(tally, strategy, len(PROMPT.prefix)),
        padding_fraction=report.padding_fractions(tally),
        batches=report.batch_summary(tally),
        score_histogram=scores,
        margin_histogram=margins,
        certification=None,
        tuning=Tuning("float32", strategy, 2048, "defaults").summary(),
        drift=None,
        model={"name": "tiny", "revision": "0123456789abcdef", "source": "a folder", "licence": "none"},
        machine={"device": "cpu", "dtype": "float32", "threads": 1},
        settings={"strategy": strategy},
        fingerprint={"input": "abc"},
    )


def strict(text: str) -> dict:
    """Parse JSON that knows no NaN and no infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@quickly
@given(verdict_lists(), st.integers(0, 5))
def test_rows_add_up(verdicts: list[Verdicts], quarantined: int) -> None:
    """Read = labelled + abstained + empty + failed + quarantined; truncated rows are labelled, abstained ones not."""
    outcome = report_of(tally_of(verdicts), quarantined=quarantined)
    rows = outcome.rows
    assert rows["read"] == len(verdicts) + quarantined
    outcomes = ("labelled", "abstained", "empty", "failed", "quarantined")
    assert rows["read"] == sum(rows[outcome] for outcome in outcomes)
    for name, status in (("truncated", TRUNCATED), ("abstained", ABSTAINED)):
        assert rows[name] == sum(int(verdict["status"][0]) == status for verdict in verdicts)
    assert sum(outcome.labels.values()) == rows["labelled"]


@quickly
@given(verdict_lists())
def test_histograms_hold_every_scored_row_once(verdicts: list[Verdicts]) -> None:
    """The abstained ones too: a histogram does not depend on the threshold."""
    tally = tally_of(verdicts)
    scores, margins = report.histograms(tally)
    margins_found = [float(verdict["margin"][0]) for verdict in verdicts if verdict["label"][0] >= 0]
    for bins, top in ((scores, 1.0), (margins, None)):
        assert sum(bin_["count"] for bin_ in bins) == len(margins_found)
        assert bins[0]["from"] == 0.0
        assert bins[-1]["to"] == top
        for bin_, following in pairwise(bins):
            assert bin_["to"] == following["from"]
    for bin_ in margins[:-1]:
        assert bin_["count"] == sum(bin_["from"] <= margin < bin_["to"] for margin in margins_found)


def test_score_a_hair_above_one_is_counted() -> None:
    """As float32 rounding can make it."""
    tally = tally_of([verdict_of(OK, score=1.0000001)])
    assert tally.score_counts.tolist() == [0] * 9 + [1]


@quickly
@given(verdict_lists(), st.lists(st.integers(1, 90), max_size=12).map(tuple), st.sampled_from(list(STRATEGIES)))
def test_json_is_strict(verdicts: list[Verdicts], lengths: tuple[int, ...], strategy: str) -> None:
    """Whatever was counted, nothing included; it comes back as it was."""
    outcome = report_of(tally_of(verdicts, lengths, strategy), strategy)
    text = outcome.to_json()
    assert strict(text) == dataclasses.asdict(outcome)
    assert text.endswith("}\n")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_refuses_what_is_no_number(value: float) -> None:
    outcome = dataclasses.replace(report_of(tally_of([])), throughput={"run_tickets_per_second": value})
    with pytest.raises(ValueError, match="not JSON compliant"):
        outcome.to_json()


def test_names_beyond_ascii_stay_readable() -> None:
    assert "R\u00fcckgabe" in report_of(tally_of([])).to_json()


@pytest.mark.parametrize(
    ("statuses", "quarantined", "code"),
    [([], 0, 0), ([OK, TRUNCATED, EMPTY, ABSTAINED], 0, 0), ([OK, FAILED], 0, 5), ([OK], 1, 5), ([FAILED], 2, 5)],
)
def test_exit_code(statuses: list[int], quarantined: int, code: int) -> None:
    """Failed or quarantined tickets are 5; empty, truncated and abstained ones are no fault."""
    outcome = report_of(tally_of([verdict_of(status) for status in statuses]), quarantined=quarantined)
    assert outcome.exit_code == code


def test_summary_for_the_terminal() -> None:
    """The figures of the contract: tickets, labels, tickets/s, padding of run, naive and arrival, prefix savings."""
    verdicts = [verdict_of(status, label) for status, label in ((OK, 1), (OK, 1), (TRUNCATED, 0), (EMPTY, 0))]
    verdicts.append(verdict_of(ABSTAINED, 1))
    tally = tally_of(verdicts, lengths=(40, 3, 7))
    tally.duplicates = 1
    tally.resumed_rows = 2
    outcome = report_of(tally)
    text = str(outcome)
    assert "5 read, 3 labelled, 1 truncated, 1 abstained, 1 empty" in text
    assert "failed" not in text
    assert "1 duplicates scored once, 2 rows from the interrupted run" in text
    assert "bug 2  billing 1  R\u00fcckgabe 0" in text
    assert "12.5 tickets/s scoring" in text
    assert "tiny (0123456789ab), float32 on cpu" in text
    padding = outcome.padding_fraction
    assert f"padding     {padding['run']:.1%} with bucketed+prefix" in text
    assert f"(naive {padding['naive']:.1%}, arrival order {padding['arrival']:.1%})" in text
    assert "100 saved by the shared prefix" in text


def test_summary_of_nothing() -> None:
    """An empty input is no error."""
    assert "0 read, 0 labelled" in str(report_of(tally_of([])))


def drift_of(psi: float | None, shifted: bool) -> dict:
    judged = {"psi": psi, "chance": psi, "shifted": shifted}
    return {"report": "old.json", "finished": "2025-01-01T00:00:00+00:00", "labels": judged, "scores": judged}


def test_drift_in_the_summary() -> None:
    """Only where an earlier run was named."""
    outcome = report_of(tally_of([]))
    assert "drift" not in str(outcome)
    for psi, shifted, says in ((0.1234, True, "0.123 (shifted)"), (None, False, "? (no shift)")):
        text = str(dataclasses.replace(outcome, drift=drift_of(psi, shifted)))
        assert f"labels PSI {says}, scores PSI {says} since old.json of 2025-01-01T00:00:00+00:00" in text


# Tokens


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@quickly
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12).map(tuple))
def test_run_is_counted_like_its_strategys_plan(strategy: str, lengths: tuple[int, ...]) -> None:
    """What the run computes is what the comparison says of its strategy; padding = computed - real."""
    tally = tally_of([], lengths, strategy)
    assert tally.run == tally.plans[strategy]
    tokens = report.token_counts(tally, strategy, len(PROMPT.prefix))
    fractions = report.padding_fractions(tally)
    assert fractions["run"] == fractions[strategy] == pytest.approx(tokens["padding"] / tokens["computed"])
    assert tokens["real"] + tokens["padding"] == tokens["computed"]
    assert fractions["per-item"] == fractions["packed"] == fractions["packed+prefix"] == 0.0
    assert fractions["naive"] >= fractions["arrival"] >= 0.0
    assert set(fractions) == {"run", *STRATEGIES}


@pytest.mark.parametrize(("strategy", "saved"), [("bucketed", 0), ("bucketed+prefix", 100)])
def test_prefix_is_saved_by_all_tickets_but_one(strategy: str, saved: int) -> None:
    """Only where it is shared: the shared plan and the prefix saved make up the plan with full prompts."""
    tally = tally_of([], (40, 3, 7), strategy)
    assert report.token_counts(tally, strategy, 50)["prefix_saved"] == saved
    assert tally.plans["bucketed"].real - tally.plans["bucketed+prefix"].real == 3 * 50


def test_windows_add_up() -> None:
    tally = tally_of([], (40, 3, 7))
    count_run(tally, (5, 5), "bucketed+prefix")
    assert tally.scored == 5
    assert tally.run.real == 40 + 3 + 7 + 5 + 5 + 5 * 4
    assert tally.token_lengths == Counter({5: 2, 40: 1, 3: 1, 7: 1})


def test_batch_shapes() -> None:
    tally = tally_of([], (40, 40, 40, 40, 3, 3, 3, 3), "bucketed")
    count_run(tally, (40, 40, 40, 40), "bucketed")
    tally.halvings = 3
    summary = report.batch_summary(tally)
    assert summary["count"] == 3
    assert summary["distinct_shapes"] == 2
    assert summary["most_frequent"][0] == {"rows": 4, "width": 94, "count": 2}
    assert summary["largest"] == {"rows": 4, "width": 94}
    assert summary["halved_for_memory"] == 3
    assert report.batch_summary(Tally(labels=2))["largest"] == {"rows": 0, "width": 0}


def test_stages_add_up_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the block fails."""
    clock = iter([10.0, 12.0, 20.0, 20.5])
    monkeypatch.setattr("ticket_etl.tally.time.monotonic", lambda: next(clock))
    tally = Tally(labels=2)
    with tally.stage("score"):
        pass
    with pytest.raises(KeyError), tally.stage("score"):
        raise KeyError
    assert tally.seconds == {"score": 2.5}


# Quantiles


@quickly
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.sampled_from(["0", "0.25", "0.5", "0.9", "0.99", "1"]))
def test_quantile_is_the_smallest_length_that_covers_the_share(lengths: list[int], share: str) -> None:
    least = min(
        length
        for length in lengths
        if Fraction(sum(other <= length for other in lengths), len(lengths)) >= Fraction(share)
    )
    assert quantile(Counter(lengths), float(share)) == least


def test_quantile_of_nothing_is_zero() -> None:
    assert quantile(Counter(), 0.5) == 0


def test_page_is_self_contained_and_escapes() -> None:
    """No script, nothing to load, and a label with markup in its name stays text."""
    some_report = dataclasses.replace(
        report_of(tally_of([verdict_of(OK)], (5, 9))),
        labels={"<b>bold</b> $x$": 3, "bug": 1},
        drift=drift_of(0.5, True) | {"label_shares": {"<b>bold</b>": {"earlier": 0.25, "now": 0.75}}},
    )
    page = render_page(some_report)
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert "<b>bold" not in page
    assert "<th>label_shares.&lt;b&gt;bold&lt;/b&gt;.now</th><td>0.75</td>" in page
    assert not re.search(r'(src|href)="(?!#)', page.replace("xmlns:xlink", ""))
    assert page == render_page(some_report)
