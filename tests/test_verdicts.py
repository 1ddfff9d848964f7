"""From log-probabilities to a label, its margin and its status, and from those to output columns."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ticket_etl.verdicts import (
    ABSTAINED,
    EMPTY,
    FAILED,
    OK,
    OUTPUT_NAMES,
    STATUSES,
    TRUNCATED,
    VERDICT,
    Abstention,
    Verdicts,
    blank_verdicts,
    decide,
    output_batch,
    output_schema,
)

NAMES = ("billing", "bug", "R\u00fcckgabe")


def log_prob_rows() -> st.SearchStrategy[np.ndarray]:
    """Rows of 2 to 5 labels out of few values, so that ties are common."""
    shapes = st.tuples(st.integers(0, 8), st.integers(2, 5))
    values = st.sampled_from([0.0, -0.25, -1.0, -7.5, -90.0])
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=values))


def decide_all(rows: object, truncated: bool = False) -> Verdicts:
    log_probs = np.array(rows, dtype=np.float32)
    return decide(log_probs, np.full(len(log_probs), truncated))


@settings(max_examples=100, deadline=None)
@given(log_prob_rows())
def test_best_label_wins_and_the_first_among_equals(log_probs: np.ndarray) -> None:
    """The margin is the distance to the second best, 0 in a tie; the score is the probability."""
    verdicts = decide(log_probs, np.zeros(len(log_probs), dtype=bool))
    for verdict, row in zip(verdicts, log_probs.tolist(), strict=True):
        first, second = sorted(row, reverse=True)[:2]
        assert verdict["label"] == row.index(first)
        assert verdict["score"] == pytest.approx(np.exp(first), rel=1e-6)
        assert verdict["margin"] == pytest.approx(first - second)
        assert verdict["status"] == OK


def test_tie_goes_to_the_label_listed_first() -> None:
    assert decide_all([[-2.0, -0.5, -0.5]])["label"].tolist() == [1]
    assert decide_all([[-1.0, -1.0, -1.0]])["margin"].tolist() == [0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_row_that_is_not_finite_fails(bad: float, place: int) -> None:
    """It never makes a label, wherever the value stands and whether or not the ticket was cut; its neighbours stay."""
    rows = np.full((3, 3), -1.0, dtype=np.float32)
    rows[1, place] = bad
    verdicts = decide(rows, np.array([False, True, True]))
    assert verdicts["status"].tolist() == [OK, FAILED, TRUNCATED]
    assert verdicts["label"].tolist() == [0, -1, 0]
    assert np.isnan(verdicts["score"]).tolist() == [False, True, False]
    assert np.isnan(verdicts["margin"]).tolist() == [False, True, False]


def test_cut_ticket_is_truncated() -> None:
    assert decide_all([[-1.0, -2.0]], truncated=True)["status"].tolist() == [TRUNCATED]


def test_no_rows() -> None:
    verdicts = decide(np.empty((0, 3), dtype=np.float32), np.empty(0, dtype=bool))
    assert verdicts.dtype == VERDICT
    assert len(verdicts) == 0


def test_scores_are_left_as_they_were() -> None:
    rows = np.array([[-1.0, -2.0], [np.nan, -3.0]], dtype=np.float32)
    before = rows.copy()
    decide(rows, np.zeros(2, dtype=bool))
    assert np.array_equal(rows, before, equal_nan=True)


@pytest.mark.parametrize("status", [EMPTY, FAILED])
def test_blank_verdicts_have_no_label(status: int) -> None:
    verdicts = blank_verdicts(2, status)
    assert verdicts["label"].tolist() == [-1, -1]
    assert verdicts["status"].tolist() == [status, status]
    assert np.isnan([verdicts["score"], verdicts["margin"]]).all()


def test_output_columns() -> None:
    """Names, types and values of the contract; what has no label is null in all columns but the status."""
    verdicts = np.concatenate(
        [
            decide_all([[-2.0, -3.0, -0.25]]),
            blank_verdicts(1, EMPTY),
            decide_all([[0.0, -9.0, -9.0]], truncated=True),
            blank_verdicts(1, FAILED),
        ]
    )
    batch = output_batch(verdicts, NAMES)
    assert batch.schema.names == list(OUTPUT_NAMES) == ["label", "label_score", "label_margin", "label_status"]
    assert batch.schema.types == [pa.string(), pa.float32(), pa.float32(), pa.string()]
    assert batch["label"].to_pylist() == ["R\u00fcckgabe", None, "billing", None]
    assert batch["label_score"].to_pylist() == [pytest.approx(np.exp(-0.25)), None, 1.0, None]
    assert batch["label_margin"].to_pylist() == [1.75, None, 9.0, None]
    assert batch["label_status"].to_pylist() == ["ok", "empty", "truncated", "failed"]
    batch.validate(full=True)


def test_output_holds_no_nan() -> None:
    """Null is the only way to say nothing: NaN would be counted as a number."""
    columns = output_batch(blank_verdicts(3, FAILED), NAMES)
    assert [columns[name].null_count for name in OUTPUT_NAMES] == [3, 3, 3, 0]


def test_output_prefix_goes_before_each_name() -> None:
    batch = output_batch(decide_all([[-1.0, -2.0]]), NAMES, prefix="ai_")
    assert batch.schema == output_schema("ai_")
    assert batch.schema.names == ["ai_label", "ai_label_score", "ai_label_margin", "ai_label_status"]


def test_output_of_no_rows_has_the_schema() -> None:
    batch = output_batch(blank_verdicts(0, OK), NAMES)
    assert (batch.num_rows, batch.schema) == (0, output_schema())


def test_statuses_are_the_contracts() -> None:
    names = [STATUSES[status] for status in (OK, TRUNCATED, EMPTY, FAILED, ABSTAINED)]
    assert names == ["ok", "truncated", "empty", "failed", "abstained"]


def test_codes_of_statuses_stay() -> None:
    """Journals and label caches hold them."""
    assert (OK, TRUNCATED, EMPTY, FAILED, ABSTAINED) == (0, 1, 2, 3, 4)


# Abstaining


def two_labels(*shares: float, truncated: bool = False) -> Verdicts:
    """Verdicts between two labels whose first has these probabilities; the margin is log(p / (1 - p))."""
    return decide_all([[np.log(share), np.log1p(-share)] for share in shares], truncated=truncated)


@settings(max_examples=100, deadline=None)
@given(log_prob_rows(), st.sampled_from([0.0, 0.3, 0.78, 1.0]), st.sampled_from([0.0, 0.25, 0.5, 7.0]))
def test_label_below_a_threshold_does_not_stand(log_probs: np.ndarray, min_score: float, min_margin: float) -> None:
    """Either threshold is enough; a label that just reaches both stands, and nothing but the status changes."""
    scored = decide(log_probs, np.zeros(len(log_probs), dtype=bool))
    decided = Abstention(min_score, min_margin).apply(scored)
    for before, after in zip(scored, decided, strict=True):
        below = before["score"] < np.float32(min_score) or before["margin"] < np.float32(min_margin)
        assert after["status"] == (ABSTAINED if below else before["status"])
        for name in ("label", "score", "margin"):
            assert after[name] == before[name]


def test_score_at_the_threshold_stands() -> None:
    """0.7 is no float32 number; a score of 0.7 reaches --min-score 0.7 all the same."""
    verdicts = two_labels(0.6, 0.7)
    verdicts["score"] = [np.nextafter(np.float32(0.7), np.float32(0.0)), np.float32(0.7)]
    assert Abstention(min_score=0.7).apply(verdicts)["status"].tolist() == [ABSTAINED, OK]


def test_only_what_has_a_label_abstains() -> None:
    """Empty and failed tickets stay what they are; an uncertain label of a cut ticket does not stand either."""
    verdicts = np.concatenate(
        [blank_verdicts(1, EMPTY), blank_verdicts(1, FAILED), two_labels(0.6, 0.9, truncated=True)]
    )
    decided = Abstention(min_score=0.8, min_margin=0.5).apply(verdicts)
    assert decided["status"].tolist() == [EMPTY, FAILED, ABSTAINED, TRUNCATED]


def test_verdicts_that_abstain_are_a_copy() -> None:
    """What the journal holds is threshold-free, and read-only."""
    verdicts = np.frombuffer(two_labels(0.6).tobytes(), dtype=VERDICT)
    assert Abstention(min_score=0.8).apply(verdicts)["status"].tolist() == [ABSTAINED]
    assert verdicts["status"].tolist() == [OK]


@pytest.mark.parametrize(("fallback", "label"), [(None, None), ("unsure", "unsure"), ("bug", "bug")])
def test_abstained_row_of_the_output(fallback: str | None, label: str | None) -> None:
    """No label or the fallback, which may be one of the labels; score and margin stay those of the best label."""
    verdicts = np.concatenate([two_labels(0.6, 0.9), blank_verdicts(1, EMPTY)])
    batch = output_batch(Abstention(min_score=0.8).apply(verdicts), NAMES, fallback=fallback)
    assert batch["label"].to_pylist() == [label, "billing", None]
    assert batch["label_score"].to_pylist() == [pytest.approx(0.6), pytest.approx(0.9), None]
    assert batch["label_margin"].to_pylist() == [pytest.approx(np.log(1.5)), pytest.approx(np.log(9)), None]
    assert batch["label_status"].to_pylist() == ["abstained", "ok", "empty"]
    batch.validate(full=True)
