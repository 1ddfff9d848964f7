"""The labels' token sequences as a trie, and the one rule that turns logits into label probabilities.

A label's probability is the probability that constrained decoding emits it: at each branch of the trie the model's
distribution is renormalised over the branch's children, and a label's probability is the product along its path.
Nodes with one child cost nothing, so only branches need logits. With distinct first tokens the root is the only branch:
one read at the last position of the prompt.

Deeper branches are read in the same forward pass: the tokens that lead to them are appended to the prompt as a small
tree (`nodes`), in which a node sees the prompt and its own ancestors. For the labels `ab`, `ac`, `d` (ended by `$`):

    root ─┬─ a ─┬─ b $          branches   root {a, d}   and   a {b, c}
          │     └─ c $          nodes      a (depth 1)
          └─ d $                P(ab) = P(a | a or d) · P(b | b or c)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import BoolArray, FloatArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Branch:
    """A trie node with several children."""

    path: tuple[int, ...]
    """Token ids from the root to this node."""
    children: tuple[int, ...]
    """Token ids of the children, ascending, so that the order of labels changes nothing."""


@dataclass(frozen=True)
class LabelTrie:
    """Branches of the labels' trie and, per label, the choices that lead to it."""

    branches: tuple[Branch, ...]
    """The root first, then by depth."""
    choices: tuple[tuple[tuple[int, int], ...], ...]
    """Per label: pairs (branch index, child index) along its path."""

    @cached_property
    def rows(self) -> IntArray:
        """Token ids, ascending, whose rows of the output matrix are needed: shape (rows,)."""
        return np.unique(np.array([token for branch in self.branches for token in branch.children], dtype=np.int64))

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Paths of the nodes that must follow the prompt so that every branch can be read; parents before children."""
        paths = {branch.path[:depth] for branch in self.branches for depth in range(1, len(branch.path) + 1)}
        return tuple(sorted(paths, key=lambda path: (len(path), path)))

    @cached_property
    def node_tokens(self) -> IntArray:
        """Token id of each node: shape (nodes,)."""
        return np.array([path[-1] for path in self.nodes], dtype=np.int64)

    @cached_property
    def node_depths(self) -> IntArray:
        """Distance of each node from the last prompt token: shape (nodes,)."""
        return np.array([len(path) for path in self.nodes], dtype=np.int64)

    @cached_property
    def node_sees(self) -> BoolArray:
        """Which nodes a node attends to, itself and its ancestors: shape (nodes, nodes)."""
        return np.array([[path[: len(other)] == other for other in self.nodes] for path in self.nodes], dtype=np.bool_)

    @cached_property
    def branch_offsets(self) -> IntArray:
        """Where each branch is read, counted from the last prompt token (0 is the root): shape (branches,)."""
        offset = {path: 1 + index for index, path in enumerate(self.nodes)}
        return np.array([offset.get(branch.path, 0) for branch in self.branches], dtype=np.int64)

    def label_log_probs(self, logits: FloatArray) -> FloatArray:
        """Log-probability of every label.

        Args:
            logits: float32, shape (tickets, branches, rows), columns in the order of `rows`.

        Returns:
            float32, shape (tickets, labels); each row sums to one in probability. Non-finite logits give NaN.
        """
        log_probs = np.zeros((len(logits), len(self.choices)), dtype=np.float64)
        for index, branch in enumerate(self.branches):
            columns = np.searchsorted(self.rows, branch.children)
            children = log_softmax(logits[:, index, columns].astype(np.float64))
            for label, choices in enumerate(self.choices):
                for chosen_branch, child in choices:
                    if chosen_branch == index:
                        log_probs[:, label] += children[:, child]
        return log_probs.astype(np.float32)


def build_trie(sequences: Sequence[Sequence[int]]) -> LabelTrie:
    """Build the trie of token sequences, each already ended by the end-of-turn token.

    >>> trie = build_trie([[1, 2, 0], [1, 3, 0], [4, 0]])
    >>> [branch.children for branch in trie.branches]
    [(1, 4), (2, 3)]
    >>> trie.choices
    (((0, 0), (1, 0)), ((0, 0), (1, 1)), ((0, 1),))

    Raises:
        ValueError: two sequences are equal, or one continues another.
    """
    children: dict[tuple[int, ...], set[int]] = {}
    for sequence in sequences:
        for depth, token in enumerate(sequence):
            children.setdefault(tuple(sequence[:depth]), set()).add(token)
    if len({tuple(sequence) for sequence in sequences} - children.keys()) != len(sequences):
        raise ValueError("label sequences must differ and end each in a token of its own")
    paths = sorted((path for path, tokens in children.items() if len(tokens) > 1), key=lambda path: (len(path), path))
    branches = tuple(Branch(path, tuple(sorted(children[path]))) for path in paths)
    choices = tuple(
        tuple(
            (index, branch.children.index(sequence[len(branch.path)]))
            for index, branch in enumerate(branches)
            if tuple(sequence[: len(branch.path)]) == branch.path
        )
        for sequence in sequences
    )
    return LabelTrie(branches, choices)


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log-softmax over the last axis; a row with a non-finite logit becomes NaN throughout."""
    finite = np.isfinite(logits).all(axis=-1, keepdims=True)
    safe = np.where(finite, logits, 0.0)
    shifted = safe - safe.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.where(finite, log_probs, np.nan)
