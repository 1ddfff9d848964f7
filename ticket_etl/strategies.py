"""The one list of strategies: how tickets are batched, and whether the prompt's prefix is computed once for all.

The command line, the bench, the report and the tests read this list; a strategy that is added here is offered, timed,
reported and judged against `per-item` without another line.
"""

from dataclasses import dataclass

from ticket_etl import plan


@dataclass(frozen=True)
class Strategy:
    """A way of batching.

    planner: makes batches from token lengths.
    shares_prefix: the key-value cache of the prefix is computed once and shared by all tickets; otherwise each ticket
        carries the full prompt.
    """

    name: str
    summary: str
    planner: plan.Planner
    shares_prefix: bool

    @property
    def packs(self) -> bool:
        """Whether tickets share rows."""
        return self.planner is plan.packed


_BATCHING: tuple[tuple[str, str, plan.Planner], ...] = (
    ("per-item", "each ticket alone, unpadded", plan.one_by_one),
    ("naive", "fixed batches, padded to the longest ticket of all", plan.padded_to_longest),
    ("arrival", "fixed batches in arrival order, padded to the batch's longest", plan.in_order),
    ("bucketed", "fixed batches sorted by length", plan.by_length),
    ("token-budget", "sorted by length, batches bounded by tokens", plan.by_token_budget),
    ("packed", "sorted by length, laid end to end without padding", plan.packed),
)

STRATEGIES: dict[str, Strategy] = {
    name: Strategy(name, summary, planner, shares_prefix)
    for base, text, planner in _BATCHING
    for name, summary, shares_prefix in (
        (base, f"{text}, full prompt", False),
        (f"{base}+prefix", f"{text}, prefix computed once", True),
    )
}

REFERENCE = STRATEGIES["per-item"]
"""The judge of all others: each ticket alone, full prompt, unpadded, no cache."""
