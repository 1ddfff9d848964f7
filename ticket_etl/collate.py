"""From a planned batch to the arrays a model is given. The one place that knows how wide a ticket is.

`Layout.lengths` is what the planners and the report count with, and `Layout.collate` builds arrays of exactly that
size, so that a reported token is a computed token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import Lengths, TokenIds
from ticket_etl.plan import Batch
from ticket_etl.prompt import Prompt
from ticket_etl.strategies import REFERENCE, Strategy

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """Where one ticket, or one piece of it, lies in a batch; tokens attend within their span.

    row, start, stop: columns [start, stop) of a row; the label nodes are the last of them.
    own: the columns of the ticket's own tokens.
    ticket: its place in `Batch.tickets`.
    """

    row: int
    start: int
    stop: int
    own: tuple[int, int]
    ticket: int


@dataclass(frozen=True)
class Inputs:
    """A batch as arrays.

    token_ids: int64, shape (rows, width); padding is 0, a token like any other, since nothing ever looks at it.
    positions: int64, shape (rows, width), counted from the start of the full prompt, shared prefix included.
    reads: int64, shape (tickets, branches): where each label branch is read, as an index into the flattened rows.
    spans: one per ticket, or per piece of a ticket, in the order of `Batch.tickets`.
    """

    token_ids: IntArray
    positions: IntArray
    reads: IntArray
    spans: tuple[Span, ...]

    def tickets(self) -> list[IntArray]:
        """The tickets' own token ids, pieces joined, in the order of `Batch.tickets`."""
        pieces: list[list[IntArray]] = [[] for _ in self.reads]
        for span in self.spans:
            pieces[span.ticket].append(self.token_ids[span.row, slice(*span.own)])
        return list(map(np.concatenate, pieces))


@dataclass(frozen=True)
class Layout:
    """How a ticket lies in its batch: (prefix +) ticket + suffix + label nodes.

    Where the prompt bounds a piece, each piece of a longer ticket is laid out like that, one after the other.

    shares_prefix: the prefix stands before every batch in a key-value cache, and is not part of the rows.
    branches_apart: each label branch is read in a pass of its own, over prompt and path, instead of from label nodes.
    """

    prompt: Prompt
    shares_prefix: bool
    branches_apart: bool = False

    @classmethod
    def of(cls, strategy: Strategy, prompt: Prompt) -> "Layout":
        """How a strategy lays tickets out; the reference alone goes without label nodes."""
        return cls(prompt, strategy.shares_prefix, strategy is REFERENCE)

    @property
    def shared_tokens(self) -> int:
        """Tokens that stand in the shared cache: the prefix, or none."""
        return len(self.prompt.prefix) if self.shares_prefix else 0

    def lengths(self, tickets: Sequence[TokenIds]) -> Lengths:
        """Tokens computed for each ticket, its padding aside: int64, shape (tickets,)."""
        own = np.array([len(ticket) for ticket in tickets], dtype=np.int64)
        if self.branches_apart:
            branches = self.prompt.trie.branches
            prompts = own + self.prompt.pieces(own) * (len(self.prompt.prefix) + len(self.prompt.suffix))
            return len(branches) * prompts + sum(len(branch.path) for branch in branches)
        return own + self.prompt.pieces(own) * (self.prompt.fixed_tokens - self.shared_tokens)

    def collate(self, batch: Batch, tickets: Sequence[TokenIds]) -> Inputs:
        """The arrays of one batch; `tickets` holds the token ids of all tickets of the plan."""
        trie = self.prompt.trie
        shape = (len(batch.rows), batch.width)
        token_ids = np.zeros(shape, dtype=np.int64)
        positions = np.zeros(shape, dtype=np.int64)
        if self.prompt.piece_tokens is None:
            # Padding goes on counting, so that a row without label nodes stays one plain ascending sequence.
            positions += self.shared_tokens + np.arange(batch.width)
        reads: list[IntArray] = []
        spans: list[Span] = []
        for row, members in enumerate(batch.rows):
            start = 0
            for ticket in members:
                for piece in self.prompt.split(tickets[ticket]):
                    tokens = self._tokens(piece)
                    last = start + len(tokens) - 1
                    stop = last + 1 + len(trie.nodes)
                    token_ids[row, start:stop] = np.concatenate([tokens, trie.node_tokens])
                    positions[row, start : last + 1] = self.shared_tokens + np.arange(len(tokens))
                    positions[row, last + 1 : stop] = positions[row, last] + trie.node_depths
                    own_stop = last + 1 - len(self.prompt.suffix)
                    spans.append(Span(row, start, stop, (own_stop - len(piece), own_stop), len(reads)))
                    start = stop
                reads.append(row * batch.width + last + trie.branch_offsets)
        return Inputs(token_ids, positions, np.stack(reads), tuple(spans))

    def _tokens(self, piece: TokenIds) -> IntArray:
        prefix = self.prompt.prefix[: 0 if self.shares_prefix else None]
        return np.concatenate([prefix, piece, self.prompt.suffix]).astype(np.int64)
