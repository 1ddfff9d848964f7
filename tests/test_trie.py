"""The label trie against constrained decoding, step by step, on random label sequences."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_etl.trie import LabelTrie, build_trie

END = 0
TOKENS = (1, 9, 17, 25)
"""Equal modulo 8, so that a set of them is not in ascending order by chance."""
Sequences = list[tuple[int, ...]]

quickly = settings(max_examples=100, deadline=None)


def label_sequences() -> st.SearchStrategy[Sequences]:
    """Distinct token sequences over a small alphabet, so that stems and prefixes are shared; each ended by END."""
    tokens = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map(tuple)
    return st.lists(tokens, min_size=2, max_size=12, unique=True).map(lambda names: [(*name, END) for name in names])


def logits_after(path: Sequence[int], seed: int, ticket: int = 0) -> np.ndarray:
    """A made-up model: float32 logits of the tokens 0..25 after a path."""
    return np.random.default_rng([seed, ticket, *path]).normal(scale=4.0, size=26).astype(np.float32)


def read_branches(trie: LabelTrie, seed: int, tickets: int = 1) -> np.ndarray:
    """What a model gives a trie: shape (tickets, branches, rows)."""
    reads = [
        [logits_after(branch.path, seed, ticket)[trie.rows] for branch in trie.branches] for ticket in range(tickets)
    ]
    return np.array(reads, dtype=np.float32)


def decode_constrained(sequence: tuple[int, ...], sequences: Sequences, seed: int, ticket: int) -> float:
    """Log-probability that decoding emits `sequence` if at every step only continuations of labels are allowed."""
    total = 0.0
    for depth, token in enumerate(sequence):
        allowed = {other[depth] for other in sequences if other[:depth] == sequence[:depth]}
        logits = logits_after(sequence[:depth], seed, ticket).astype(np.float64)
        total += logits[token] - math.log(sum(math.exp(logits[other]) for other in allowed))
    return total


@quickly
@given(label_sequences(), st.integers(0, 999))
def test_scores_are_those_of_constrained_decoding(sequences: Sequences, seed: int) -> None:
    trie = build_trie(sequences)
    scores = trie.label_log_probs(read_branches(trie, seed, tickets=2))
    expected = [[decode_constrained(seq, sequences, seed, ticket) for seq in sequences] for ticket in range(2)]
    assert scores.dtype == np.float32
    assert scores == pytest.approx(np.array(expected), abs=1e-4)


@quickly
@given(label_sequences(), st.integers(0, 999))
def test_probabilities_sum_to_one(sequences: Sequences, seed: int) -> None:
    trie = build_trie(sequences)
    scores = trie.label_log_probs(read_branches(trie, seed, tickets=3))
    assert np.exp(scores.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)


@quickly
@given(label_sequences(), st.randoms(use_true_random=False), st.integers(0, 999))
def test_order_of_labels_changes_nothing(sequences: Sequences, random: object, seed: int) -> None:
    """Permuted labels get the same bits."""
    order = random.sample(range(len(sequences)), len(sequences))
    trie, shuffled = build_trie(sequences), build_trie([sequences[index] for index in order])
    assert trie.branches == shuffled.branches
    assert trie.nodes == shuffled.nodes
    scores = trie.label_log_probs(read_branches(trie, seed))
    assert (shuffled.label_log_probs(read_branches(shuffled, seed)) == scores[:, order]).all()


@quickly
@given(label_sequences())
def test_every_label_has_choices_of_its_own(sequences: Sequences) -> None:
    """No more branches than labels can part at, the root first, parents before children."""
    trie = build_trie(sequences)
    assert len(set(trie.choices)) == len(sequences)
    assert len(trie.branches) < len(sequences)
    depths = [len(branch.path) for branch in trie.branches]
    assert depths == sorted(depths)
    assert all(branch.children == tuple(sorted(set(branch.children))) for branch in trie.branches)
    assert all(len(branch.children) > 1 for branch in trie.branches)


@quickly
@given(label_sequences())
def test_nodes_lead_to_every_branch_and_nowhere_else(sequences: Sequences) -> None:
    """Each branch is read at the token that ends its path, each node follows its parent and sees ancestors only."""
    trie = build_trie(sequences)
    needed = {branch.path[:depth] for branch in trie.branches for depth in range(1, len(branch.path) + 1)}
    assert set(trie.nodes) == needed
    assert len(trie.nodes) == len(needed)
    for index, path in enumerate(trie.nodes):
        assert trie.node_tokens[index] == path[-1]
        assert trie.node_depths[index] == len(path)
        assert len(path) == 1 or path[:-1] in trie.nodes[:index]
        seen = {other for other, sees in zip(trie.nodes, trie.node_sees[index], strict=True) if sees}
        assert seen == {path[:depth] for depth in range(1, len(path) + 1)}
    for branch, offset in zip(trie.branches, trie.branch_offsets, strict=True):
        assert branch.path == (trie.nodes[offset - 1] if offset else ())


@quickly
@given(label_sequences(), st.integers(0, 999), st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
def test_logits_that_are_not_finite_give_nan(sequences: Sequences, seed: int, bad: float, data: st.DataObject) -> None:
    """To the labels whose path passes them, in the tickets that have them, and to no others."""
    trie = build_trie(sequences)
    logits = read_branches(trie, seed, tickets=2)
    clean = trie.label_log_probs(logits)
    index = data.draw(st.integers(0, len(trie.branches) - 1))
    token = data.draw(st.sampled_from(trie.branches[index].children))
    logits[1, index, np.searchsorted(trie.rows, token)] = bad
    scores = trie.label_log_probs(logits)
    passes = [any(branch == index for branch, _ in choices) for choices in trie.choices]
    assert np.isnan(scores[1]).tolist() == passes
    assert (scores[0] == clean[0]).all()
    assert (scores[1][~np.array(passes)] == clean[1][~np.array(passes)]).all()


def test_labels_with_distinct_first_tokens_are_read_once() -> None:
    """No node follows the prompt, and the rest of a label's tokens costs nothing."""
    trie = build_trie([(1, 7, 7, 7, END), (2, END), (3, 9, END)])
    assert len(trie.branches) == 1
    assert trie.nodes == ()
    assert trie.rows.tolist() == [1, 2, 3]
    assert trie.node_sees.shape[0] == 0


def test_label_that_begins_another_is_told_apart_by_its_end() -> None:
    """`ab` and `ab c`: after `ab`, the end-of-turn token stands against `c`."""
    trie = build_trie([(1, 2, END), (1, 2, 3, END), (4, END)])
    assert [(branch.path, branch.children) for branch in trie.branches] == [((), (1, 4)), ((1, 2), (END, 3))]
    assert trie.nodes == ((1,), (1, 2))


def test_only_the_children_of_branches_are_renormalised() -> None:
    """Worked by hand: P(a) = 3/4 at the root; b and c stand 1 to 3 after it."""
    trie = build_trie([(1, 2, END), (1, 3, END), (4, END)])
    assert trie.rows.tolist() == [1, 2, 3, 4]
    logits = np.log(np.array([[[3, 99, 99, 1], [99, 1, 3, 99]]], dtype=np.float32))
    assert np.exp(trie.label_log_probs(logits)) == pytest.approx(np.array([[3 / 16, 9 / 16, 1 / 4]]), rel=1e-6)


def test_large_logits_do_not_overflow() -> None:
    """A certain label has probability one; its rival's log-probability is the difference."""
    trie = build_trie([(1, END), (2, END)])
    assert trie.label_log_probs(np.array([[[30000.0, -30000.0]]], dtype=np.float32)).tolist() == [[0.0, -60000.0]]


@pytest.mark.parametrize(
    "sequences",
    [
        [(1, END), (1, END)],
        [(1, 2, END), (3, END), (1, 2, END)],
        [(1,), (1, 2)],
        [(), (1,)],
    ],
    ids=["twice", "twice-apart", "continued", "empty"],
)
def test_sequences_that_cannot_be_told_apart_are_refused(sequences: Sequences) -> None:
    with pytest.raises(ValueError, match="must differ"):
        build_trie(sequences)
