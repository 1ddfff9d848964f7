"""The one list of strategies: how tickets are batched, and whether the prompt's prefix is computed once for all.

The command line, the bench, the report and the tests read this list; a strategy that is added here is offered, timed,
reported and judged against `per-item` without another line.
"""

from dataclasses import dataclass

from ticket_etl import plan


@dataclass(frozen=True)
class Strategy:
    """A way of batching.

    batching: its name without the prefix.
    planner: makes batches from token lengths.
    shares_prefix: the key-value cache of the prefix is computed once and shared by all tickets; otherwise each ticket
        carries the full prompt.
    """

    batching: str
    planner: plan.Planner
    shares_prefix: bool

    @property
    def name(self) -> str:
        """What the user calls it."""
        return f"{self.batching}+prefix" if self.shares_prefix else self.batching

    @property
    def packs(self) -> bool:
        """Whether tickets share rows."""
        return self.planner is plan.packed

    @property
    def unshared(self) -> "Strategy":
        """The same batching with the full prompt in each ticket."""
        return STRATEGIES[self.batching]

    @property
    def padded(self) -> "Strategy":
        """Itself, or what bounds batches in the same way and needs no packing."""
        return STRATEGIES[self.name.replace(_PACKED, _BY_TOKENS)] if self.packs else self

    @property
    def simpler(self) -> "Strategy":
        """What takes its place on a model that it does not fit: without packing, then without sharing, then alone."""
        if self.packs:
            return self.padded
        return self.unshared if self.shares_prefix else REFERENCE


_BY_TOKENS, _PACKED = "token-budget", "packed"
_PLANNERS: dict[str, plan.Planner] = {
    "per-item": plan.one_by_one,
    "naive": plan.padded_to_longest,
    "arrival": plan.in_order,
    "bucketed": plan.by_length,
    _BY_TOKENS: plan.by_token_budget,
    _PACKED: plan.packed,
}

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for batching, planner in _PLANNERS.items()
    for strategy in (Strategy(batching, planner, False), Strategy(batching, planner, True))
}

REFERENCE = STRATEGIES["per-item"]
"""The judge of all others: each ticket alone, full prompt, unpadded, no cache."""
