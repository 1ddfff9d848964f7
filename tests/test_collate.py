"""The one width rule: what is planned, what is collated and what a model is given are the same tokens."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_model, tiny_tokenizer
from ticket_etl.arrays import TokenIds
from ticket_etl.collate import Inputs, Layout
from ticket_etl.labels import Label, LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.plan import Batch, Limits, computed_tokens
from ticket_etl.prompt import Prompt, TicketEncoder, build_prompt
from ticket_etl.readings import LabelReading
from ticket_etl.scorers import build_scorer
from ticket_etl.strategies import STRATEGIES, Strategy
from ticket_etl.trie import build_trie

LABEL_TOKENS = {
    "flat": ((5, 0), (6, 0), (7, 0)),
    "deep": ((5, 6, 0), (5, 7, 8, 0), (5, 7, 9, 0), (6, 0)),
    "wide": ((5, 6, 0), (5, 7, 0), (8, 6, 0), (8, 7, 0)),
    "prefixes": ((5, 0), (5, 6, 0), (5, 6, 7, 0)),
}
LABEL_NAMES = {"flat": ["a", "b", "c"], "deep": ["refund yes", "refund no", "refund yes please", "bug"]}

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def made_up_ids(count: int, start: int) -> TokenIds:
    """Token ids that are told apart by their place, and never 0."""
    return np.arange(start, start + count, dtype=np.int32)


def prompts() -> st.SearchStrategy[Prompt]:
    def build(prefix: int, suffix: int, labels: str) -> Prompt:
        sequences = LABEL_TOKENS[labels]
        return Prompt(made_up_ids(prefix, 1000), made_up_ids(suffix, 2000), build_trie(sequences), sequences)

    return st.builds(build, st.integers(1, 12), st.integers(1, 5), st.sampled_from(list(LABEL_TOKENS)))


def ticket_lists() -> st.SearchStrategy[list[TokenIds]]:
    lengths = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=12)
    return lengths.map(lambda sizes: [made_up_ids(size, 100 * (n + 30)) for n, size in enumerate(sizes)])


def all_limits() -> st.SearchStrategy[Limits]:
    return st.builds(Limits, st.integers(1, 5), st.integers(1, 200))


def plan_with(strategy: Strategy, layout: Layout, tickets: list[TokenIds], limits: Limits) -> list[Batch]:
    bounded = Limits(limits.batch_tickets, limits.batch_tokens, layout.shared_tokens)
    return strategy.planner(layout.lengths(tickets), bounded)


def own_tokens(layout: Layout, ticket: TokenIds) -> list[int]:
    """What stands in a row for one ticket, up to the label nodes."""
    prompt = layout.prompt
    return [*([] if layout.shares_prefix else prompt.prefix), *ticket, *prompt.suffix]


over_all_plans = given(prompts(), ticket_lists(), all_limits())
quickly = settings(max_examples=25, deadline=None)


@every_strategy
@quickly
@over_all_plans
def test_collated_tokens_are_the_planned_tokens(
    strategy: Strategy, prompt: Prompt, tickets: list[TokenIds], limits: Limits
) -> None:
    """Batch for batch and in all, and each ticket takes the length it was planned with."""
    layout = Layout(prompt, strategy.shares_prefix)
    lengths = layout.lengths(tickets)
    batches = plan_with(strategy, layout, tickets, limits)
    inputs = [layout.collate(batch, tickets) for batch in batches]
    for batch, arrays in zip(batches, inputs, strict=True):
        assert arrays.token_ids.shape == arrays.positions.shape == (len(batch.rows), batch.width)
        assert arrays.token_ids.size == batch.computed_tokens
        assert [span.stop - span.start for span in arrays.spans] == lengths[list(batch.tickets)].tolist()
    assert sum(arrays.token_ids.size for arrays in inputs) == computed_tokens(batches)


@every_strategy
@quickly
@over_all_plans
def test_rows_hold_each_ticket_whole_and_nothing_else(
    strategy: Strategy, prompt: Prompt, tickets: list[TokenIds], limits: Limits
) -> None:
    """Prefix if it is not shared, ticket, suffix, label nodes; what lies outside of the spans is padding."""
    layout = Layout(prompt, strategy.shares_prefix)
    for batch in plan_with(strategy, layout, tickets, limits):
        inputs = layout.collate(batch, tickets)
        rest = inputs.token_ids.copy()
        for ticket, span in zip(batch.tickets, inputs.spans, strict=True):
            found = inputs.token_ids[span.row, span.start : span.stop].tolist()
            assert found == own_tokens(layout, tickets[ticket]) + prompt.trie.node_tokens.tolist()
            rest[span.row, span.start : span.stop] = 0
        assert not rest.any()


@every_strategy
@quickly
@over_all_plans
def test_positions_are_those_of_the_prompt_alone(
    strategy: Strategy, prompt: Prompt, tickets: list[TokenIds], limits: Limits
) -> None:
    """They count from the start of the full prompt wherever a ticket lies; label nodes go on by their depth."""
    layout = Layout(prompt, strategy.shares_prefix)
    for batch in plan_with(strategy, layout, tickets, limits):
        inputs = layout.collate(batch, tickets)
        for ticket, span in zip(batch.tickets, inputs.spans, strict=True):
            end = len(prompt.prefix) + len(tickets[ticket]) + len(prompt.suffix)
            nodes = [end - 1 + depth for depth in prompt.trie.node_depths.tolist()]
            expected = [*range(layout.shared_tokens, end), *nodes]
            assert inputs.positions[span.row, span.start : span.stop].tolist() == expected


@every_strategy
@quickly
@over_all_plans
def test_branches_are_read_at_the_end_of_their_path(
    strategy: Strategy, prompt: Prompt, tickets: list[TokenIds], limits: Limits
) -> None:
    """The root at the ticket's last prompt token, any other branch at its own node; never in another ticket."""
    layout = Layout(prompt, strategy.shares_prefix)
    for batch in plan_with(strategy, layout, tickets, limits):
        inputs = layout.collate(batch, tickets)
        assert inputs.reads.shape == (len(batch.tickets), len(prompt.trie.branches))
        for reads, span in zip(inputs.reads.tolist(), inputs.spans, strict=True):
            for branch, read in zip(prompt.trie.branches, reads, strict=True):
                row, column = divmod(read, batch.width)
                assert row == span.row
                assert span.start <= column < span.stop
                assert read_path(inputs, prompt, read) == branch.path


def read_path(inputs: Inputs, prompt: Prompt, read: int) -> tuple[int, ...]:
    """The trie path whose end stands at a flattened index: its tokens are found by walking back through the depths."""
    tokens, positions = inputs.token_ids.reshape(-1), inputs.positions.reshape(-1)
    nodes = {path for path in prompt.trie.nodes if path[-1] == tokens[read]}
    if tokens[read] == prompt.suffix[-1]:
        return ()
    start = read
    while tokens[start] != prompt.suffix[-1]:
        start -= 1
    (path,) = {path for path in nodes if prompt.trie.nodes[read - start - 1] == path}
    assert positions[read] == positions[start] + len(path)
    return path


def test_padding_is_zero_and_goes_on_counting() -> None:
    """Two tickets of one and three tokens, worked by hand."""
    sequences = ((5, 0), (6, 0))
    prompt = Prompt(made_up_ids(2, 1000), made_up_ids(1, 2000), build_trie(sequences), sequences)
    tickets = [made_up_ids(1, 300), made_up_ids(3, 400)]
    inputs = Layout(prompt, shares_prefix=True).collate(Batch(((0,), (1,)), 4), tickets)
    assert inputs.token_ids.tolist() == [[300, 2000, 0, 0], [400, 401, 402, 2000]]
    assert inputs.positions.tolist() == [[2, 3, 4, 5], [2, 3, 4, 5]]
    assert inputs.reads.tolist() == [[1], [7]]


class Given:
    """What a model was given, call by call."""

    def __init__(self) -> None:
        self.input_ids: list[torch.Tensor] = []
        self.position_ids: list[torch.Tensor | None] = []

    def watch(self, forward: Callable) -> Callable:
        def watched(*args: object, **kwargs: object) -> object:
            assert not args
            self.input_ids.append(kwargs["input_ids"])
            self.position_ids.append(kwargs.get("position_ids"))
            return forward(**kwargs)

        return watched

    @property
    def tokens(self) -> int:
        return sum(ids.numel() for ids in self.input_ids)


TEXTS = ["refund", "My parcel never came. " * 4, "x", "error 500 " * 9, "the export crashes", "refund"]


@every_strategy
@pytest.mark.parametrize("labels", list(LABEL_NAMES))
def test_model_is_given_the_planned_tokens(strategy: Strategy, labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the model's own door: the numel of every input_ids, at the planned positions."""
    tokenizer = tiny_tokenizer()
    label_set = LabelSet(tuple(Label(name) for name in LABEL_NAMES[labels]), system="Sort.", instruction="Choose.")
    encoder = TicketEncoder(tokenizer, build_prompt(tokenizer, label_set), max_ticket_tokens=60)
    tickets = [ticket.ids for ticket in encoder.encode(TEXTS)]
    raw = tiny_model("qwen2", tokenizer)
    used, scorer = build_scorer(strategy, LabelReading(LanguageModel(raw, encoder.prompt.trie), encoder.prompt))
    assert used is strategy
    batches = plan_with(strategy, scorer.layout, tickets, Limits(batch_tickets=3, batch_tokens=250))
    assert len(batches) > 1
    given = Given()
    monkeypatch.setattr(raw, "forward", given.watch(raw.forward))
    for batch in batches:
        before = given.tokens
        scorer.score(batch, tickets)
        assert given.tokens - before == batch.computed_tokens
        if given.position_ids[-1] is not None:
            assert (given.position_ids[-1].numpy() == scorer.layout.collate(batch, tickets).positions).all()
    assert given.tokens == computed_tokens(batches)
