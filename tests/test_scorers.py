"""What happens when memory runs out, and which scorer a model gets; test_agreement judges the scores themselves."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_model, tiny_tokenizer
from ticket_etl.labels import Label, LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.plan import Batch, Limits
from ticket_etl.prompt import build_prompt
from ticket_etl.readings import LabelReading
from ticket_etl.scorers import MemoryGuard, Packed, Padded, Reference, build_scorer, is_out_of_memory
from ticket_etl.strategies import STRATEGIES

LABELS = 3


class Small:
    """A scorer with room for so many tokens; its scores tell the tickets apart."""

    def __init__(self, room: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.num_values = LABELS
        self.room = room
        self.error = error
        self.seen: list[Batch] = []

    def score(self, batch: Batch, tickets: Sequence[np.ndarray]) -> np.ndarray:
        self.seen.append(batch)
        if batch.computed_tokens > self.room:
            raise self.error("out of memory")
        return np.array([[ticket, 1, 2] for ticket in batch.tickets], dtype=np.float32)

    @property
    def sizes(self) -> list[int]:
        return [len(batch.tickets) for batch in self.seen]


def score(guard: MemoryGuard, batch: Batch, lengths: np.ndarray) -> list[float]:
    """The first column: the ticket's number, or NaN."""
    scores = guard.score(batch, [], lengths)
    assert scores.shape == (len(batch.tickets), LABELS)
    assert scores.dtype == np.float32
    return scores[:, 0].tolist()


def padded(count: int, width: int = 10) -> tuple[Batch, np.ndarray]:
    return Batch(tuple((ticket,) for ticket in range(count)), width), np.full(count, width)


def test_batch_that_fits_goes_through_whole() -> None:
    scorer = Small(room=80)
    guard = MemoryGuard(scorer)
    assert score(guard, *padded(8)) == list(range(8))
    assert (scorer.sizes, guard.halvings) == ([8], 0)


def test_batch_that_does_not_fit_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    """Until its parts fit, with every score in its place; each halving is said and counted."""
    scorer = Small(room=20)
    guard = MemoryGuard(scorer)
    assert score(guard, *padded(8)) == list(range(8))
    assert scorer.sizes == [8, 4, 2, 2, 2, 2]
    assert guard.halvings == 2
    assert len(caplog.messages) == 2


def test_size_that_did_not_fit_is_not_tried_again() -> None:
    """Later batches of that size or above are halved at once; smaller ones go through whole."""
    scorer = Small(room=40)
    guard = MemoryGuard(scorer)
    score(guard, *padded(8))
    scorer.seen.clear()
    assert score(guard, *padded(8)) == list(range(8))
    assert score(guard, *padded(16)) == list(range(16))
    assert score(guard, *padded(3)) == list(range(3))
    assert scorer.sizes == [4, 4, 4, 4, 4, 4, 3]
    assert guard.halvings == 1


def test_ticket_that_never_fits_scores_nan() -> None:
    """Alone: its neighbours keep their scores, and it costs later tickets nothing."""
    scorer = Small(room=50)
    guard = MemoryGuard(scorer)
    lengths = np.array([60, 20, 10])
    scores = score(guard, Batch(((0,), (1,), (2,)), 60), lengths)
    assert np.isnan(scores[0])
    assert scores[1:] == [1, 2]
    scorer.seen.clear()
    assert score(guard, Batch(((1,), (2,)), 20), lengths) == [1, 2]
    assert scorer.sizes == [2]


def test_single_tickets_are_always_tried() -> None:
    """However little fitted before: memory may be free again."""
    scorer = Small(room=5)
    guard = MemoryGuard(scorer)
    assert np.isnan(score(guard, *padded(2))).all()
    scorer.room = 10
    assert score(guard, *padded(2)) == [0, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 60), st.sampled_from(list(STRATEGIES)))
def test_every_ticket_that_fits_alone_is_scored(lengths: list[int], room: int, name: str) -> None:
    """Whatever the plan, the order of its scores is kept, no batch is empty and no ticket is scored twice."""
    sizes = np.array(lengths)
    scorer = Small(room)
    guard = MemoryGuard(scorer)
    for batch in STRATEGIES[name].planner(sizes, Limits(batch_tickets=4, batch_tokens=40)):
        fits = [lengths[ticket] <= room for ticket in batch.tickets]
        if len(batch.tickets) == 1:
            fits = [batch.computed_tokens <= room]
        found = score(guard, batch, sizes)
        expected = [ticket if there else np.nan for ticket, there in zip(batch.tickets, fits, strict=True)]
        assert found == pytest.approx(expected, nan_ok=True)
    assert all(size > 0 for size in scorer.sizes)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_memory_runs_out_under_several_names(error: type[Exception]) -> None:
    scorer = Small(room=20, error=error)
    assert score(MemoryGuard(scorer), *padded(4)) == list(range(4))
    assert scorer.sizes == [4, 2, 2]


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyboardInterrupt()]
)
def test_other_errors_are_not_swallowed(error: BaseException) -> None:
    class Broken(Small):
        def score(self, batch: Batch, tickets: Sequence[np.ndarray]) -> np.ndarray:
            self.seen.append(batch)
            raise error

    scorer = Broken(room=0)
    with pytest.raises(type(error)):
        MemoryGuard(scorer).score(*padded(4)[:1], [], padded(4)[1])
    assert scorer.sizes == [4]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA"), True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyError("x"), False),
    ],
)
def test_what_out_of_memory_looks_like(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


# Which scorer


@pytest.fixture
def reading() -> LabelReading:
    tokenizer = tiny_tokenizer()
    prompt = build_prompt(tokenizer, LabelSet((Label("a"), Label("b")), system="Sort.", instruction="Choose."))
    return LabelReading(LanguageModel(tiny_model("qwen2", tokenizer), prompt.trie), prompt)


def chosen(name: str, reading: LabelReading) -> tuple[str, type]:
    strategy, scorer = build_scorer(STRATEGIES[name], reading)
    assert scorer.layout.shares_prefix == strategy.shares_prefix
    return strategy.name, type(scorer)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_strategy_that_fits_is_used(name: str, reading: LabelReading, caplog: pytest.LogCaptureFixture) -> None:
    """Without a word."""
    kind = Reference if name == "per-item" else Packed if name.startswith("packed") else Padded
    assert chosen(name, reading) == (name, kind)
    assert caplog.messages == []


def breaks(error: Exception) -> object:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [NotImplementedError("no mask"), TypeError(), KeyError("layer"), RuntimeError("two\nlines")]
)
def test_padded_batches_that_fail_give_way_to_per_item(
    reading: LabelReading,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """Step by step, each step said in one line."""
    monkeypatch.setattr(Padded, "score", breaks(error))
    assert chosen("bucketed+prefix", reading) == ("per-item", Reference)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert ["using bucketed" in caplog.messages[0], "using per-item" in caplog.messages[1]] == [True, True]
    assert not any("\n" in message for message in caplog.messages)


@pytest.mark.parametrize(("name", "instead"), [("packed", "token-budget"), ("packed+prefix", "token-budget+prefix")])
def test_packing_that_fails_gives_way_to_padded_batches(
    reading: LabelReading, monkeypatch: pytest.MonkeyPatch, name: str, instead: str
) -> None:
    monkeypatch.setattr(Packed, "score", breaks(RuntimeError("no such kernel")))
    assert chosen(name, reading) == (instead, Padded)


@pytest.mark.parametrize("wrong", [1.0, np.nan, np.inf], ids=["off", "nan", "inf"])
def test_scores_that_are_wrong_give_way(
    reading: LabelReading,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: float,
) -> None:
    """A strategy is trusted only if its scores are there and right."""
    honest = Padded.score
    monkeypatch.setattr(Padded, "score", lambda self, batch, tickets: honest(self, batch, tickets) + np.float32(wrong))
    assert chosen("arrival", reading) == ("per-item", Reference)
    assert len(caplog.messages) == 1


def test_running_out_of_memory_in_the_trial_is_no_verdict_on_the_model(
    reading: LabelReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Padded, "score", breaks(torch.OutOfMemoryError("CUDA")))
    with pytest.raises(torch.OutOfMemoryError):
        chosen("arrival", reading)
