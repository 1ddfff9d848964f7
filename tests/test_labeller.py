"""One window in, one verdict a row out; the scorers are stand-ins, so that each score and each call is known."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_tokenizer
from ticket_etl.arrays import TokenIds
from ticket_etl.certify import Certifier
from ticket_etl.collate import Layout
from ticket_etl.labeller import Labeller, is_blank, text_key
from ticket_etl.labels import Label, LabelSet
from ticket_etl.plan import Batch, Limits
from ticket_etl.prompt import TicketEncoder, build_prompt
from ticket_etl.strategies import STRATEGIES
from ticket_etl.tally import Tally
from ticket_etl.verdicts import EMPTY, FAILED, OK, TRUNCATED, Verdicts

LABELS = LabelSet((Label("a"), Label("b"), Label("c")), system="Sort.", instruction="Choose.")
TOKENIZER = tiny_tokenizer()
ENCODER = TicketEncoder(TOKENIZER, build_prompt(TOKENIZER, LABELS), max_ticket_tokens=30)
STRATEGY = STRATEGIES["token-budget+prefix"]
BROKEN = "broken"
HOPELESS = "hopeless"

quickly = settings(max_examples=40, deadline=None)


def scores_of(ids: TokenIds) -> np.ndarray:
    """Made-up log-probabilities that depend on a ticket's tokens alone."""
    seed = int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=4).digest(), "big")
    logits = np.random.default_rng(seed).normal(size=len(LABELS.names))
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


class StandIn:
    """A scorer that knows what it was asked; tickets in `fails` score NaN."""

    def __init__(self, *fails: str, shares_prefix: bool = True) -> None:
        self.layout = Layout(ENCODER.prompt, shares_prefix)
        self.num_values = len(LABELS.names)
        self.fails = {text: ENCODER.encode([text])[0].ids.tolist() for text in fails}
        self.batches: list[list[str]] = []

    def score(self, batch: Batch, tickets: Sequence[TokenIds]) -> np.ndarray:
        self.batches.append([TOKENIZER.decode(tickets[ticket]) for ticket in batch.tickets])
        if self.layout.shares_prefix:  # the reference takes tickets one by one, whatever the batch's width
            assert self.layout.collate(batch, tickets).token_ids.size == batch.computed_tokens
        scores = [scores_of(tickets[ticket]) for ticket in batch.tickets]
        for row, ticket in enumerate(batch.tickets):
            if tickets[ticket].tolist() in self.fails.values():
                scores[row][1] = np.nan
        return np.stack(scores)

    @property
    def asked(self) -> list[str]:
        return [text for batch in self.batches for text in batch]


class Desk:
    """A labeller with its stand-ins."""

    def __init__(self, *fails: str, hopeless: Sequence[str] = ()) -> None:
        self.scorer = StandIn(*fails, *hopeless)
        self.reference = StandIn(*hopeless, shares_prefix=False)
        self.tally = Tally(labels=len(LABELS.names))
        self.progress: list[int] = []
        limits = Limits(batch_tickets=3, batch_tokens=300)
        self.labeller = Labeller(ENCODER, STRATEGY, self.scorer, self.reference, limits, self.tally)

    def label(self, *texts: str | None) -> Verdicts:
        return self.labeller.label(self.labeller.prepare(texts), self.progress.append)

    def label_all(self, windows: Sequence[Sequence[str | None]], early: Sequence[bool] = ()) -> list[Verdicts]:
        """Label windows in order; where `early` says so, the next one is prepared before this one is labelled."""
        ahead = [*early, *[False] * len(windows)]
        prepared: dict[int, object] = {}
        verdicts = []
        for number, texts in enumerate(windows):
            window = prepared.get(number) or self.labeller.prepare(texts)
            if ahead[number] and number + 1 < len(windows):
                prepared[number + 1] = self.labeller.prepare(windows[number + 1])
            verdicts.append(self.labeller.label(window, self.progress.append))
        return verdicts


def expect_alone(verdicts: Verdicts, texts: Sequence[str | None]) -> None:
    """Each row is as if its ticket had been labelled alone."""
    assert len(verdicts) == len(texts)
    for verdict, text in zip(verdicts, texts, strict=True):
        if is_blank(text):
            assert (verdict["status"], verdict["label"]) == (EMPTY, -1)
            continue
        ticket = ENCODER.encode([text])[0]
        scores = scores_of(ticket.ids)
        assert verdict["status"] == (TRUNCATED if ticket.truncated else OK)
        assert verdict["label"] == scores.argmax()
        assert verdict["score"] == pytest.approx(np.exp(scores.max()), rel=1e-6)
        assert verdict["margin"] == pytest.approx(np.sort(scores)[-1] - np.sort(scores)[-2], abs=1e-6)


some_text = st.one_of(
    st.sampled_from([None, "", "  \n", "\u00a0", "refund", "error 500", "refund ", "Refund"]),
    st.text("abc ", max_size=12),
    st.text("xyz", min_size=60, max_size=90),
)
some_windows = st.lists(st.lists(some_text, max_size=8), min_size=1, max_size=4)


@quickly
@given(st.lists(some_text, max_size=20))
def test_every_row_gets_its_own_verdict(texts: list[str | None]) -> None:
    """In its own place, whatever its neighbours, its repeats and its length."""
    expect_alone(Desk().label(*texts), texts)


@quickly
@given(some_windows)
def test_each_distinct_text_is_scored_once(windows: list[list[str | None]]) -> None:
    """Within a window and across windows; blank texts never."""
    desk = Desk()
    for verdicts, texts in zip(desk.label_all(windows), windows, strict=True):
        expect_alone(verdicts, texts)
    texts = [text for window in windows for text in window if not is_blank(text)]
    assert len(desk.scorer.asked) == len(set(texts)) == desk.tally.scored
    assert desk.tally.duplicates == len(texts) - len(set(texts))
    assert desk.reference.asked == []


@quickly
@given(some_windows, st.lists(st.booleans(), min_size=4, max_size=4))
def test_outcome_does_not_depend_on_when_windows_are_prepared(windows: list, early: list[bool]) -> None:
    """One window ahead or just in time: the same batches, the same bits."""
    one, other = Desk(), Desk()
    in_time, ahead = one.label_all(windows), other.label_all(windows, early)
    assert [verdicts.tobytes() for verdicts in in_time] == [verdicts.tobytes() for verdicts in ahead]
    assert one.scorer.batches == other.scorer.batches
    assert one.tally.run == other.tally.run
    assert one.tally.duplicates == other.tally.duplicates


@pytest.mark.parametrize("early", [False, True], ids=["in-time", "ahead"])
def test_duplicate_tokens_do_not_depend_on_when_windows_are_prepared(early: bool) -> None:
    """A repeat saves the tokens it would have cost, in whichever window it stands and whenever that was prepared."""
    desk = Desk()
    desk.label_all([["refund"], ["refund", "refund"]], [early])
    tokens = len(ENCODER.encode(["refund"])[0].ids) + len(ENCODER.prompt.suffix)
    assert desk.tally.duplicates == 2
    assert desk.tally.duplicate_tokens == 2 * tokens


def test_duplicate_tokens_within_a_window() -> None:
    desk = Desk()
    desk.label("refund", "x", "refund", "refund")
    tokens = len(ENCODER.encode(["refund"])[0].ids) + len(ENCODER.prompt.suffix)
    assert desk.tally.duplicate_tokens == 2 * tokens


@pytest.mark.parametrize("text", [None, "", " ", "\n\t ", "\u00a0\u3000"])
def test_blank_text_is_empty(text: str | None) -> None:
    desk = Desk()
    verdicts = desk.label(text, text)
    assert verdicts["status"].tolist() == [EMPTY, EMPTY]
    assert desk.scorer.batches == []


def test_window_of_nothing() -> None:
    assert len(Desk().label()) == 0


def test_texts_that_differ_in_white_space_are_different() -> None:
    desk = Desk()
    desk.label("refund", " refund", "refund ")
    assert sorted(desk.scorer.asked) == sorted(["refund", " refund", "refund "])


def test_progress_counts_scored_tickets_to_the_last() -> None:
    desk = Desk()
    desk.label(*[f"ticket {number}" for number in range(20)], None, "ticket 1")
    assert desk.progress == sorted(set(desk.progress))
    assert desk.progress[-1] == 20
    assert len(desk.progress) == len(desk.scorer.batches) > 1


def test_counts_are_those_of_the_plan() -> None:
    desk = Desk()
    desk.label(*[f"ticket {number} " * (number % 3 + 1) for number in range(20)])
    assert desk.tally.run == desk.tally.plans[STRATEGY.name]
    assert sum(desk.tally.batch_shapes.values()) == len(desk.scorer.batches)


# Scores that are no numbers


def test_ticket_that_scores_nan_is_tried_alone_by_the_reference() -> None:
    """Only that one, and what comes back counts."""
    desk = Desk(BROKEN)
    texts = ["one", BROKEN, "two", BROKEN]
    expect_alone(desk.label(*texts), texts)
    assert desk.reference.batches == [[BROKEN]]
    assert desk.tally.retried == 1


def test_ticket_that_scores_nan_alone_too_has_failed() -> None:
    """Its neighbours keep their labels."""
    desk = Desk(hopeless=[HOPELESS])
    verdicts = desk.label("one", HOPELESS, "two", HOPELESS)
    assert verdicts["status"].tolist() == [OK, FAILED, OK, FAILED]
    assert verdicts["label"][[1, 3]].tolist() == [-1, -1]
    expect_alone(verdicts[[0, 2]], ["one", "two"])
    assert desk.reference.batches == [[HOPELESS]]


def test_failed_ticket_is_tried_again_in_a_later_window() -> None:
    """Failures are not remembered."""
    desk = Desk(hopeless=[HOPELESS])
    assert desk.label(HOPELESS)["status"].tolist() == [FAILED]
    desk.reference.fails.clear()
    expect_alone(desk.label("one", HOPELESS), ["one", HOPELESS])
    assert Counter(desk.scorer.asked)[HOPELESS] == 2


def test_ticket_too_large_for_memory_alone_fails_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both scorers; a batch that is too large is halved, and the halvings are counted."""
    long_text = "many words " * 20
    honest = StandIn.score

    def cramped(self: StandIn, batch: Batch, tickets: Sequence[TokenIds]) -> np.ndarray:
        if max(len(tickets[ticket]) for ticket in batch.tickets) >= 30:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(self, batch, tickets)

    monkeypatch.setattr(StandIn, "score", cramped)
    desk = Desk()
    verdicts = desk.label("one", long_text, "two")
    assert verdicts["status"].tolist() == [OK, FAILED, OK]
    assert desk.tally.halvings > 0


# Low precision


@pytest.mark.parametrize(("tickets", "at_once"), [(128, True), (129, False)])
def test_small_window_is_scored_in_float32_at_once(tickets: int, at_once: bool) -> None:
    """Instead of in low precision first; a larger one is certified."""
    desk = Desk()
    exact: list[str] = []

    def score(ids: Sequence[TokenIds]) -> np.ndarray:
        exact.extend(TOKENIZER.decode(each) for each in ids)
        return np.stack([scores_of(each) for each in ids])

    limits = Limits(batch_tickets=3, batch_tokens=300)
    certifier = Certifier(score, seed=0)
    desk.labeller = Labeller(ENCODER, STRATEGY, desk.scorer, desk.reference, limits, desk.tally, certifier=certifier)
    texts = [f"ticket {number}" for number in range(tickets)]
    expect_alone(desk.label(*texts), texts)
    assert (sorted(exact) == sorted(texts)) == at_once
    assert len(desk.scorer.asked) == (0 if at_once else tickets)
    assert certifier.count.exact == (tickets if at_once else 0)
    assert desk.progress[-1] == tickets


# Windows of an earlier run


def test_resumed_window_is_recalled() -> None:
    """Its texts are not scored again, and give later rows the verdict of then."""
    first, second = ["one", None, "two", "one"], ["two", "three"]
    done = Desk().label(*first)
    desk = Desk()
    window = desk.labeller.prepare(first, encode=False)
    assert window.encoded == [None, None]
    desk.labeller.recall(window, done)
    expect_alone(desk.label(*second), second)
    assert desk.scorer.asked == ["three"]


@quickly
@given(some_windows, st.integers(0, 4))
def test_resumed_run_ends_like_one_that_was_never_stopped(windows: list, finished: int) -> None:
    """The remaining windows get the same batches, hence the same bits."""
    whole, resumed = Desk(), Desk()
    verdicts = whole.label_all(windows)
    for texts, done in list(zip(windows, verdicts, strict=True))[:finished]:
        resumed.labeller.recall(resumed.labeller.prepare(texts, encode=False), done)
    rest = resumed.label_all(windows[finished:])
    assert [part.tobytes() for part in rest] == [part.tobytes() for part in verdicts[finished:]]
    batches = len(resumed.scorer.batches)
    assert resumed.scorer.batches == whole.scorer.batches[len(whole.scorer.batches) - batches :]


def test_memory_for_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many distinct texts, later ones are scored again; the outcome is the same."""
    monkeypatch.setattr("ticket_etl.labeller._REMEMBERED_TEXTS", 2)
    desk = Desk()
    windows = [["one", "two", "three"], ["three", "two", "one"]]
    for verdicts, texts in zip(desk.label_all(windows), windows, strict=True):
        expect_alone(verdicts, texts)
    assert Counter(desk.scorer.asked) == Counter({"one": 1, "two": 1, "three": 2})


def test_text_keys_tell_texts_apart() -> None:
    """Sixteen bytes whatever the text, lone surrogates included."""
    texts = ["", "a", "A", "a ", "\u00e9", "e\u0301", "\ud800", "x" * 10_000]
    keys = [text_key(text) for text in texts]
    assert len(set(keys)) == len(texts)
    assert {len(key) for key in keys} == {16}
