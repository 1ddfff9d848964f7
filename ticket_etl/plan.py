"""Planning: which tickets go through the model together, and how much of each batch is padding.

Pure arithmetic on token lengths; nothing here knows a model. A plan is a list of `Batch`es, each a rectangle of
`len(rows)` x `width` tokens. Every planner places each ticket exactly once. Planners that sort put the longest first,
so that a batch too large for memory shows at once and the estimate of the time left errs on the safe side.

A length is what one ticket occupies in its batch: its own tokens, the suffix, the label nodes, and the prefix unless it
is shared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import Lengths


@dataclass(frozen=True)
class Batch:
    """Tickets that go through the model in one forward pass.

    rows: per row of the batch, the tickets that lie in it, end to end; padded batches hold one ticket a row.
    width: tokens per row, padding included.
    """

    rows: tuple[tuple[int, ...], ...]
    width: int

    @property
    def tickets(self) -> tuple[int, ...]:
        """Ticket indices in the order in which the batch's scores come back."""
        return tuple(ticket for row in self.rows for ticket in row)

    @property
    def computed_tokens(self) -> int:
        """Token positions the model computes for this batch, padding included."""
        return len(self.rows) * self.width

    def halves(self, lengths: Lengths) -> tuple["Batch", ...]:
        """This batch as two of half as many tickets, for a machine whose memory it did not fit."""
        if len(self.rows) == 1:
            (row,) = self.rows
            middle = len(row) // 2
            return tuple(Batch((part,), int(lengths[list(part)].sum())) for part in (row[:middle], row[middle:]))
        middle = len(self.rows) // 2
        return tuple(_padded([row[0] for row in part], lengths) for part in (self.rows[:middle], self.rows[middle:]))


@dataclass(frozen=True)
class Limits:
    """What bounds a batch.

    batch_tickets: tickets a batch, for the planners with a fixed batch size.
    batch_tokens: tokens a batch may hold in memory, for the planners with a budget.
    shared_tokens: tokens of the shared prefix, which every padded row holds a copy of (0 if it is not shared).
    """

    batch_tickets: int = 32
    batch_tokens: int = 4096
    shared_tokens: int = 0


Planner = Callable[[Lengths, Limits], list[Batch]]


def one_by_one(lengths: Lengths, limits: Limits) -> list[Batch]:  # noqa: ARG001 - a planner's signature
    """Each ticket alone, in arrival order.

    >>> one_by_one(np.array([9, 2]), Limits())
    [Batch(rows=((0,),), width=9), Batch(rows=((1,),), width=2)]
    """
    return [_padded([ticket], lengths) for ticket in range(len(lengths))]


def padded_to_longest(lengths: Lengths, limits: Limits) -> list[Batch]:
    """Fixed-size batches in arrival order, every row padded to the longest ticket of all.

    >>> padded_to_longest(np.array([9, 2, 4]), Limits(batch_tickets=2))
    [Batch(rows=((0,), (1,)), width=9), Batch(rows=((2,),), width=9)]
    """
    longest = int(lengths.max(initial=0))
    return [Batch(batch.rows, longest) for batch in in_order(lengths, limits)]


def in_order(lengths: Lengths, limits: Limits) -> list[Batch]:
    """Fixed-size batches in arrival order, padded to the longest ticket of the batch.

    >>> in_order(np.array([9, 2, 4]), Limits(batch_tickets=2))
    [Batch(rows=((0,), (1,)), width=9), Batch(rows=((2,),), width=4)]
    """
    return _chunks(range(len(lengths)), lengths, limits.batch_tickets)


def by_length(lengths: Lengths, limits: Limits) -> list[Batch]:
    """Fixed-size batches of tickets sorted by length.

    >>> by_length(np.array([9, 2, 8]), Limits(batch_tickets=2))
    [Batch(rows=((0,), (2,)), width=9), Batch(rows=((1,),), width=2)]
    """
    return _chunks(longest_first(lengths), lengths, limits.batch_tickets)


def by_token_budget(lengths: Lengths, limits: Limits) -> list[Batch]:
    """Tickets sorted by length, as many a batch as the token budget holds.

    A row holds its padded width and, if the prefix is shared, a copy of the prefix. Only a ticket alone may exceed the
    budget.

    >>> by_token_budget(np.array([9, 2, 8, 2]), Limits(batch_tokens=18))
    [Batch(rows=((0,), (2,)), width=9), Batch(rows=((1,), (3,)), width=2)]
    """
    batches: list[Batch] = []
    order = longest_first(lengths)
    start = 0
    while start < len(order):
        held = int(lengths[order[start]]) + limits.shared_tokens
        count = max(1, limits.batch_tokens // held)
        batches.append(_padded(order[start : start + count], lengths))
        start += count
    return batches


def packed(lengths: Lengths, limits: Limits) -> list[Batch]:
    """Tickets sorted by length and laid end to end in one row, without padding, as many as the token budget holds.

    >>> packed(np.array([9, 2, 8, 2]), Limits(batch_tokens=18))
    [Batch(rows=((0, 2),), width=17), Batch(rows=((1, 3),), width=4)]
    """
    batches: list[Batch] = []
    row: list[int] = []
    width = 0
    for ticket in longest_first(lengths):
        length = int(lengths[ticket])
        if row and width + length > limits.batch_tokens:
            batches.append(Batch((tuple(row),), width))
            row, width = [], 0
        row.append(ticket)
        width += length
    return [*batches, Batch((tuple(row),), width)] if row else batches


def longest_first(lengths: Lengths) -> list[int]:
    """Ticket indices by falling length; equal lengths keep their order.

    >>> longest_first(np.array([3, 9, 3]))
    [1, 0, 2]
    """
    order: list[int] = np.argsort(-lengths, kind="stable").tolist()
    return order


def restore_order(batches: Sequence[Batch], scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Put the scores of each batch back at their tickets' places.

    Args:
        batches: a plan over tickets 0..n-1.
        scores: per batch, float32 of shape (tickets of the batch, labels).

    Returns:
        float32 of shape (n, labels): row i belongs to ticket i.
    """
    order = np.array([ticket for batch in batches for ticket in batch.tickets], dtype=np.int64)
    stacked = np.concatenate(scores)
    restored = np.empty_like(stacked)
    restored[order] = stacked
    return restored


def computed_tokens(batches: Sequence[Batch]) -> int:
    """Token positions the model computes for a plan, padding included."""
    return sum(batch.computed_tokens for batch in batches)


def padding_fraction(real_tokens: int, computed: int) -> float:
    """Share of the computed tokens that is padding; 0 for an empty plan.

    >>> padding_fraction(real_tokens=75, computed=100)
    0.25
    """
    return 1.0 - real_tokens / computed if computed else 0.0


def _chunks(order: Sequence[int], lengths: Lengths, size: int) -> list[Batch]:
    return [_padded(order[start : start + size], lengths) for start in range(0, len(order), size)]


def _padded(tickets: Sequence[int], lengths: Lengths) -> Batch:
    """One ticket a row, padded to the longest of them."""
    return Batch(tuple((ticket,) for ticket in tickets), int(lengths[list(tickets)].max()))
