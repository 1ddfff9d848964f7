"""Scorers: batches in, label log-probabilities out.

`Reference` is the slow path that nobody can doubt: each ticket alone, the full prompt, unpadded, no cache, no mask of
ours. The others must agree with it; `build_scorer` tries each on the model at hand before it trusts it, so that an
architecture whose cache or masks work differently costs speed and never a label.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from ticket_etl.arrays import FloatArray, Lengths, TokenIds
from ticket_etl.attention import enable_packing, packing_for
from ticket_etl.collate import Layout
from ticket_etl.network import PrefixCache
from ticket_etl.plan import Batch, Limits, restore_order
from ticket_etl.readings import Reading
from ticket_etl.strategies import REFERENCE, Strategy

log = logging.getLogger("ticket_etl")

_TRIAL_TOLERANCE = 1e-3
_LOW_PRECISION_TOLERANCE = 1.0
"""Largest difference of what is read in a trial, see `_drift`; a wrong mask or cache is further off than rounding."""

CHECK_TOLERANCE = 1e-4
"""How far log-probabilities in float32 may be from those of `per-item`, absolute or relative to their size."""


class Scorer(Protocol):
    """Scores the tickets of a batch.

    num_values: per ticket; as a rule the log-probabilities of the labels.
    """

    layout: Layout
    num_values: int

    def score(self, batch: Batch, tickets: Sequence[TokenIds]) -> FloatArray:
        """What is read of each ticket: float32, shape (tickets, values), in the order of `batch.tickets`."""
        ...


class Reference:
    """Each ticket alone."""

    def __init__(self, reading: Reading) -> None:
        self.layout = Layout.of(REFERENCE, reading.prompt)
        self.num_values = reading.num_values
        self._reading = reading

    def score(self, batch: Batch, tickets: Sequence[TokenIds]) -> FloatArray:
        """See `Scorer.score`."""
        return np.stack([self._reading.alone(tickets[ticket]) for ticket in batch.tickets])


class Padded:
    """One ticket a row, padded on the right; with a shared prefix, each row has a copy of its cache."""

    def __init__(self, reading: Reading, layout: Layout) -> None:
        self.layout = layout
        self.num_values = reading.num_values
        self._reading = reading
        self._prefix = _shared_prefix(reading, layout)

    def score(self, batch: Batch, tickets: Sequence[TokenIds]) -> FloatArray:
        """See `Scorer.score`."""
        inputs = self.layout.collate(batch, tickets)
        how = self._reading.model.attention_mask(inputs, self.layout)
        if self._prefix is not None:
            how |= self._reading.model.expand(self._prefix, len(batch.rows))
        return self._reading.batch(inputs, **how)


class Packed:
    """All tickets of a batch end to end in one row: no padding reaches a linear layer."""

    def __init__(self, reading: Reading, layout: Layout) -> None:
        self.layout = layout
        self.num_values = reading.num_values
        self._reading = reading
        self._packing = packing_for(reading.model, _shared_prefix(reading, layout), layout.prompt.trie)

    def score(self, batch: Batch, tickets: Sequence[TokenIds]) -> FloatArray:
        """See `Scorer.score`."""
        inputs = self.layout.collate(batch, tickets)
        return self._reading.batch(inputs, packed_batch=self._packing.batch(inputs, self._reading.model))


def build_scorer(strategy: Strategy, reading: Reading) -> tuple[Strategy, Scorer]:
    """The scorer of a strategy, or of the nearest one that is right on this model, said once on the log.

    A strategy that fails gives way first to padded batches if it packs, then to its unshared form (a cache that cannot
    be shared), and everything to `per-item`. An encoder, whose tokens see both ways, has no prefix to share at all.
    """
    if strategy.shares_prefix and not reading.model.causal:
        log.warning("strategy %s needs a causal model; using %s", strategy.name, strategy.unshared.name)
        strategy = strategy.unshared
    while strategy is not REFERENCE:
        try:
            scorer = _make_scorer(strategy, reading)
            problem = _try_out(scorer, strategy, reading)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            IndexError,
            NotImplementedError,
        ) as error:
            if is_out_of_memory(error):
                raise
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if problem is None:
            return strategy, scorer
        strategy = _give_way(strategy, problem)
    return REFERENCE, Reference(reading)


def check_scorer(
    strategy: Strategy,
    scorer: Scorer,
    reading: Reading,
    reference: Reference,
    limits: Limits,
    tickets: Sequence[TokenIds],
) -> tuple[Strategy, Scorer]:
    """Hold a float32 scorer against the reference on real tickets; it gives way like in `build_scorer`.

    Args:
        reading: what the scorer reads, and what takes its place is built from.
        reference: runs on the model's own layers; if `per-item` in `reading` is off too, it does the work itself.
        tickets: a few, since each goes through the model alone too.
    """
    expected = reference_scores(reference, tickets)
    while True:
        scores = score_plan(scorer, strategy, limits, tickets)
        if np.allclose(scores, expected, rtol=CHECK_TOLERANCE, atol=CHECK_TOLERANCE):
            return strategy, scorer
        problem = f"log-probabilities of real tickets are off by {np.abs(scores - expected).max():.2g}"
        if strategy is REFERENCE:
            log.warning(
                "prepacked weights do not fit this model (%s); using its own layers, each ticket alone", problem
            )
            return REFERENCE, reference
        strategy, scorer = build_scorer(_give_way(strategy, problem), reading)


def reference_scores(
    reference: Reference, tickets: Sequence[TokenIds], on_progress: Callable[[int, int], None] | None = None
) -> FloatArray:
    """Log-probabilities of the reference path: float32, shape (tickets, labels)."""
    scores = []
    for batch in REFERENCE.planner(reference.layout.lengths(tickets), Limits()):
        scores.append(reference.score(batch, tickets))
        if on_progress is not None:
            on_progress(len(scores), len(tickets))
    return np.concatenate(scores)


def _make_scorer(strategy: Strategy, reading: Reading) -> Scorer:
    layout = Layout.of(strategy, reading.prompt)
    if not strategy.packs:
        return Padded(reading, layout)
    enable_packing(reading.model)
    return Packed(reading, layout)


def _shared_prefix(reading: Reading, layout: Layout) -> PrefixCache | None:
    return reading.model.prefix_cache(reading.prompt.prefix.tolist()) if layout.shares_prefix else None


def _give_way(strategy: Strategy, problem: str) -> Strategy:
    log.warning("strategy %s does not fit this model (%s); using %s", strategy.name, problem, strategy.simpler.name)
    return strategy.simpler


def _try_out(scorer: Scorer, strategy: Strategy, reading: Reading) -> str | None:
    """Score a few tickets of different lengths together and alone; say what is wrong, or None."""
    prompt = reading.prompt
    labels = [token for sequence in prompt.sequences for token in sequence]
    words = np.resize(np.concatenate([prompt.prefix[-9:], prompt.suffix, labels]), 9 + (prompt.piece_tokens or 0))
    tickets = [words.astype(np.int32)[part] for part in (slice(9), slice(3, 4), slice(2, 7))]
    if prompt.piece_tokens:  # one that is read in two pieces
        tickets.append(words.astype(np.int32))
    limits = Limits(batch_tickets=len(tickets), shared_tokens=scorer.layout.shared_tokens)
    alone = Reference(reading)
    batches = strategy.planner(scorer.layout.lengths(tickets), limits)
    drift = np.max(
        [_drift(scorer.score(batch, tickets), alone.score(batch, tickets)) for batch in batches]
    )  # NaN stays
    tolerance = _LOW_PRECISION_TOLERANCE if reading.model.is_low_precision else _TRIAL_TOLERANCE
    return None if drift <= tolerance else f"what is read of tickets is off by {drift:.2g}"


def _drift(values: FloatArray, expected: FloatArray) -> float:
    """The largest difference, absolute, or relative to a value above 1: hidden states may be large."""
    return float((np.abs(values - expected) / np.maximum(1.0, np.abs(expected))).max())


class MemoryGuard:
    """Scores batches; one that does not fit in memory is halved, and so are later ones of its size.

    A single ticket that does not fit scores NaN, which is never a label.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._too_large: int | None = None
        self.halvings = 0

    def score(self, batch: Batch, tickets: Sequence[TokenIds], lengths: Lengths) -> FloatArray:
        """See `Scorer.score`; `lengths` are those of the plan."""
        fits = self._too_large is None or batch.computed_tokens < self._too_large
        if fits or len(batch.tickets) == 1:
            scores = self._attempt(batch, tickets)
            if scores is not None:
                return scores
        if len(batch.tickets) == 1:
            return np.full((1, self._scorer.num_values), np.nan, dtype=np.float32)
        return np.concatenate([self.score(half, tickets, lengths) for half in batch.halves(lengths)])

    def _attempt(self, batch: Batch, tickets: Sequence[TokenIds]) -> FloatArray | None:
        try:
            return self._scorer.score(batch, tickets)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out of the handler, so that the exception no longer keeps the failed batch's tensors alive.
        if len(batch.tickets) > 1:
            log.warning("a batch of %d tickets did not fit in memory; halving it", len(batch.tickets))
            self.halvings += 1
            self._too_large = min(self._too_large or batch.computed_tokens, batch.computed_tokens)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def score_plan(
    scorer: Scorer,
    strategy: Strategy,
    limits: Limits,
    tickets: Sequence[TokenIds],
    on_progress: Callable[[int, int], None] | None = None,
) -> FloatArray:
    """What is read of tickets, batched by a strategy: float32, shape (tickets, values), as a rule log-probabilities.

    `on_progress` is told how many of them are done.
    """
    lengths = scorer.layout.lengths(tickets)
    bounded = Limits(limits.batch_tickets, limits.batch_tokens, scorer.layout.shared_tokens)
    guard = MemoryGuard(scorer)
    batches = strategy.planner(lengths, bounded)
    scores: list[FloatArray] = []
    for batch in batches:
        scores.append(guard.score(batch, tickets, lengths))
        if on_progress is not None:
            on_progress(sum(map(len, scores)), len(tickets))
    return restore_order(batches, scores)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: CUDA, MPS and the CPU allocator each say so differently."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        phrase in text for phrase in ("out of memory", "can't allocate memory", "not enough memory")
    )
