"""Counts that a run collects as it goes; `report` turns them into what a person reads."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import TokenIds
from ticket_etl.collate import Layout
from ticket_etl.plan import Batch, Limits, computed_tokens
from ticket_etl.prompt import Prompt
from ticket_etl.strategies import STRATEGIES
from ticket_etl.verdicts import ABSTAINED, STATUSES, Verdicts

MARGIN_EDGES = np.array([0.0, 0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf])
SCORE_EDGES = np.linspace(0.0, 1.0, 11)


@dataclass
class PlanCount:
    """Tokens of one strategy's plan: those that are asked for, and those that are computed with the padding."""

    real: int = 0
    computed: int = 0


@dataclass
class Tally:
    """Everything counted in one run; token counts are of the tickets scored in this run."""

    labels: int
    statuses: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(STATUSES), dtype=np.int64))
    label_counts: npt.NDArray[np.int64] = field(init=False)
    score_counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SCORE_EDGES) - 1, dtype=np.int64))
    margin_counts: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(MARGIN_EDGES) - 1, dtype=np.int64)
    )
    token_lengths: Counter[int] = field(default_factory=Counter)
    scored: int = 0
    duplicates: int = 0
    duplicate_tokens: int = 0
    resumed_rows: int = 0
    cached_rows: int = 0
    retried: int = 0
    halvings: int = 0
    batch_shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    run: PlanCount = field(default_factory=PlanCount)
    plans: dict[str, PlanCount] = field(default_factory=lambda: {name: PlanCount() for name in STRATEGIES})
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.label_counts = np.zeros(self.labels, dtype=np.int64)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to a stage."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def count_plan(self, batches: Sequence[Batch], lengths: npt.NDArray[np.int64]) -> None:
        """Count the plan that this run computes."""
        self.run.real += int(lengths.sum())
        self.run.computed += computed_tokens(batches)
        self.batch_shapes.update((len(batch.rows), batch.width) for batch in batches)

    def count_alternatives(self, tickets: Sequence[TokenIds], prompt: Prompt, limits: Limits) -> None:
        """Count what every strategy that the model can run would compute for the same tickets."""
        self.scored += len(tickets)
        self.token_lengths.update(len(ticket) for ticket in tickets)
        for name, strategy in STRATEGIES.items():
            if strategy.shares_prefix and not prompt.is_causal:
                self.plans.pop(name, None)
                continue
            layout = Layout.of(strategy, prompt)
            lengths = layout.lengths(tickets)
            bounded = Limits(limits.batch_tickets, limits.batch_tokens, layout.shared_tokens)
            self.plans[name].real += int(lengths.sum())
            self.plans[name].computed += computed_tokens(strategy.planner(lengths, bounded))

    def count_verdicts(self, verdicts: Verdicts) -> None:
        """Count rows as they go to OUT: labels of those that are labelled, scores and margins of the abstained too."""
        self.statuses += np.bincount(verdicts["status"], minlength=len(STATUSES))
        scored = verdicts[verdicts["label"] >= 0]
        labelled = scored[scored["status"] != ABSTAINED]
        self.label_counts += np.bincount(labelled["label"], minlength=self.labels)
        self.score_counts += np.histogram(scored["score"].clip(0.0, 1.0), SCORE_EDGES)[0]
        self.margin_counts += np.histogram(scored["margin"], MARGIN_EDGES)[0]


def quantile(lengths: Counter[int], share: float) -> int:
    """The smallest length that at least this share of the tickets does not exceed; 0 if there are none.

    >>> quantile(Counter({3: 1, 5: 2, 90: 1}), 0.5)
    5
    """
    if not lengths:
        return 0
    return int(np.quantile(list(lengths), share, weights=list(lengths.values()), method="inverted_cdf"))
