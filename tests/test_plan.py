"""Planners place each ticket once, within their limits; restoring undoes what planning did to the order."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_etl import plan
from ticket_etl.plan import Batch, Limits, computed_tokens, padding_fraction, restore_order
from ticket_etl.sampling import stratified_sample
from ticket_etl.strategies import REFERENCE, STRATEGIES

PLANNERS = {strategy.planner.__name__: strategy.planner for strategy in STRATEGIES.values()}
SORTED = [plan.by_length, plan.by_token_budget, plan.packed]
FIXED_SIZE = [plan.padded_to_longest, plan.in_order, plan.by_length]
UNPADDED = [plan.one_by_one, plan.packed]

every_planner = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
quickly = settings(max_examples=40, deadline=None)


def length_arrays(min_size: int = 0) -> st.SearchStrategy[np.ndarray]:
    """Token lengths, with many ties."""
    some = st.one_of(st.integers(1, 6), st.integers(1, 400))
    return st.lists(some, min_size=min_size, max_size=40).map(lambda sizes: np.array(sizes, dtype=np.int64))


def all_limits() -> st.SearchStrategy[Limits]:
    return st.builds(
        Limits,
        batch_tickets=st.integers(1, 9),
        batch_tokens=st.one_of(st.integers(1, 20), st.integers(1, 900)),
        shared_tokens=st.sampled_from([0, 1, 50]),
    )


def tickets_of(batches: list[Batch]) -> list[int]:
    return [ticket for batch in batches for ticket in batch.tickets]


def row_tokens(batch: Batch, lengths: np.ndarray) -> list[int]:
    return [int(lengths[list(row)].sum()) for row in batch.rows]


@every_planner
@quickly
@given(length_arrays(), all_limits())
def test_each_ticket_exactly_once(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    assert sorted(tickets_of(planner(lengths, limits))) == list(range(len(lengths)))


@every_planner
@quickly
@given(length_arrays(), all_limits())
def test_every_row_fits_its_width(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    """No batch is empty, no row is longer than the rectangle, and the tickets are counted once each."""
    for batch in planner(lengths, limits):
        assert batch.rows
        assert all(batch.rows)
        assert max(row_tokens(batch, lengths)) <= batch.width
        assert batch.computed_tokens == len(batch.rows) * batch.width


@every_planner
@quickly
@given(length_arrays(), all_limits())
def test_computed_tokens_are_at_least_the_real_ones(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    """And exactly those where nothing is padded."""
    computed, real = computed_tokens(planner(lengths, limits)), int(lengths.sum())
    assert computed == real if planner in UNPADDED else computed >= real


@every_planner
@quickly
@given(length_arrays(), all_limits())
def test_planning_is_repeatable(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    """The same lengths give the same batches and are left as they were."""
    before = lengths.copy()
    assert planner(lengths, limits) == planner(lengths.copy(), limits)
    assert (lengths == before).all()


@every_planner
@quickly
@given(length_arrays(min_size=1), all_limits())
def test_restoring_inverts_planning(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    batches = planner(lengths, limits)
    scores = [np.array([[ticket, -ticket] for ticket in batch.tickets], dtype=np.float32) for batch in batches]
    restored = restore_order(batches, scores)
    assert restored.dtype == np.float32
    assert restored.tolist() == [[ticket, -ticket] for ticket in range(len(lengths))]


@every_planner
def test_nothing_to_plan(planner: plan.Planner) -> None:
    assert planner(np.array([], dtype=np.int64), Limits()) == []


@pytest.mark.parametrize("planner", SORTED)
@quickly
@given(length_arrays(), all_limits())
def test_sorted_planners_put_the_longest_first(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    """Tickets of equal length keep their order."""
    planned = tickets_of(planner(lengths, limits))
    assert planned == sorted(range(len(lengths)), key=lambda ticket: (-lengths[ticket], ticket))


@pytest.mark.parametrize("planner", [plan.one_by_one, plan.padded_to_longest, plan.in_order])
@quickly
@given(length_arrays(), all_limits())
def test_other_planners_keep_the_order(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    assert tickets_of(planner(lengths, limits)) == list(range(len(lengths)))


@pytest.mark.parametrize("planner", FIXED_SIZE)
@quickly
@given(length_arrays(), all_limits())
def test_fixed_batches_are_full_but_for_the_last(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    sizes = [len(batch.rows) for batch in planner(lengths, limits)]
    assert all(size == limits.batch_tickets for size in sizes[:-1])
    assert all(1 <= size <= limits.batch_tickets for size in sizes[-1:])


@quickly
@given(length_arrays(), all_limits())
def test_naive_pads_to_the_longest_of_all_and_arrival_to_the_batchs(lengths: np.ndarray, limits: Limits) -> None:
    naive, arrival = plan.padded_to_longest(lengths, limits), plan.in_order(lengths, limits)
    assert [batch.rows for batch in naive] == [batch.rows for batch in arrival]
    assert all(batch.width == lengths.max() for batch in naive)
    assert all(batch.width == max(row_tokens(batch, lengths)) for batch in arrival)


@quickly
@given(length_arrays(), all_limits())
def test_token_budget_is_exceeded_only_by_a_ticket_alone(lengths: np.ndarray, limits: Limits) -> None:
    """Each row counts its width and its own copy of the shared prefix."""
    for batch in plan.by_token_budget(lengths, limits):
        held = len(batch.rows) * (batch.width + limits.shared_tokens)
        assert held <= limits.batch_tokens or len(batch.tickets) == 1


@quickly
@given(length_arrays(), all_limits())
def test_token_budget_batches_take_what_fits(lengths: np.ndarray, limits: Limits) -> None:
    """One more ticket would not have fitted into any batch but the last."""
    for batch in plan.by_token_budget(lengths, limits)[:-1]:
        assert (len(batch.rows) + 1) * (batch.width + limits.shared_tokens) > limits.batch_tokens


@quickly
@given(length_arrays(), all_limits())
def test_packed_row_exceeds_the_budget_only_with_a_ticket_alone(lengths: np.ndarray, limits: Limits) -> None:
    """A packed batch is one row, filled until the next ticket would not fit; the prefix lies outside of it."""
    batches = plan.packed(lengths, limits)
    for batch in batches:
        assert len(batch.rows) == 1
        assert row_tokens(batch, lengths) == [batch.width]
        assert batch.width <= limits.batch_tokens or len(batch.tickets) == 1
    for batch, following in pairwise(batches):
        assert batch.width + lengths[following.tickets[0]] > limits.batch_tokens


@every_planner
@quickly
@given(length_arrays(), all_limits())
def test_halves_keep_tickets_and_order(planner: plan.Planner, lengths: np.ndarray, limits: Limits) -> None:
    """Two batches of half as many tickets, neither empty, each as narrow as its tickets allow."""
    for batch in planner(lengths, limits):
        if len(batch.tickets) < 2:
            continue
        halves = batch.halves(lengths)
        assert [len(half.tickets) for half in halves] == [len(batch.tickets) // 2, -(-len(batch.tickets) // 2)]
        assert tickets_of(list(halves)) == list(batch.tickets)
        assert all(half.width == max(row_tokens(half, lengths)) for half in halves)
        assert all(half.computed_tokens < batch.computed_tokens for half in halves)


def test_budget_that_is_met_exactly_is_not_exceeded() -> None:
    lengths = np.array([6, 4, 5, 5])
    assert plan.packed(lengths, Limits(batch_tokens=11)) == [Batch(((0, 2),), 11), Batch(((3, 1),), 9)]
    assert plan.by_token_budget(lengths, Limits(batch_tokens=24, shared_tokens=6)) == [
        Batch(((0,), (2,)), 6),
        Batch(((3,), (1,)), 5),
    ]


def test_padding_fraction() -> None:
    assert padding_fraction(real_tokens=30, computed=40) == 0.25
    assert padding_fraction(real_tokens=40, computed=40) == 0.0
    assert padding_fraction(real_tokens=0, computed=0) == 0.0


def test_strategies_come_with_and_without_the_shared_prefix() -> None:
    """The twelve names of the contract, each under its own name, in pairs of one planner."""
    bases = ["per-item", "naive", "arrival", "bucketed", "token-budget", "packed"]
    assert list(STRATEGIES) == [name for base in bases for name in (base, f"{base}+prefix")]
    assert all(strategy.name == name for name, strategy in STRATEGIES.items())
    assert all(strategy.shares_prefix == name.endswith("+prefix") for name, strategy in STRATEGIES.items())
    assert all(strategy.packs == name.startswith("packed") for name, strategy in STRATEGIES.items())
    assert set(Counter(strategy.planner for strategy in STRATEGIES.values()).values()) == {2}


def test_reference_is_a_ticket_alone_with_its_full_prompt() -> None:
    assert (REFERENCE.name, REFERENCE.planner, REFERENCE.shares_prefix) == ("per-item", plan.one_by_one, False)


@quickly
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 50), st.integers(0, 5))
def test_sample_is_spread_over_all_lengths(lengths: list[int], count: int, seed: int) -> None:
    """As many distinct tickets as asked for, ascending, the longest among them, the same for the same seed."""
    sample = stratified_sample(lengths, count, seed)
    assert sample == stratified_sample(lengths, count, seed)
    assert len(sample) == min(count, len(lengths))
    assert sample == sorted(set(sample))
    if lengths:
        assert max(lengths) in [lengths[index] for index in sample]


def test_sample_depends_on_the_seed() -> None:
    assert len({tuple(stratified_sample(range(1000), 10, seed)) for seed in range(5)}) == 5


def test_sample_draws_from_every_slice_of_the_length_ranking() -> None:
    """Ten of a hundred: the longest, and one of each eleven ranks below it."""
    lengths = [(7 * index) % 100 for index in range(100)]
    ranks = sorted(lengths[index] for index in stratified_sample(lengths, 10, seed=3))
    assert [rank // 11 for rank in ranks] == list(range(10))
    assert ranks[-1] == 99


def test_sample_may_hold_any_ticket() -> None:
    """The long ones too: what is never drawn is never verified."""
    drawn = {index for seed in range(200) for index in stratified_sample(range(40), 8, seed)}
    assert drawn == set(range(40))
