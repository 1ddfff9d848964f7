"""Every strategy against the reference, and the reference against a judge that shares no code with it."""

import numpy as np
import pytest
import torch

from tests.tiny import LAYOUTS, tiny_model, tiny_tokenizer
from ticket_etl.labels import Label, LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.plan import Limits, restore_order
from ticket_etl.prompt import TicketEncoder, build_prompt
from ticket_etl.readings import LabelReading
from ticket_etl.scorers import Reference, Scorer, build_scorer
from ticket_etl.strategies import REFERENCE, STRATEGIES, Strategy

LABEL_SETS = {
    "single-token": ["a", "b", "c", "d"],
    "multi-token": ["billing question", "billing dispute", "parcel lost", "parcel late", "bug"],
    "prefixes": ["bill", "billing", "billing page", "error", "e"],
    "one-stem": ["refund yes", "refund no", "refund yes please"],
}
TEXTS = [
    "refund",
    "I cannot log in to my account after the password reset. " * 3,
    "The parcel never came",
    " leading space",
    "\nleading newline",
    "x",
    "Please send the invoice again, the billing page shows an error. " * 5,
    "The parcel never came",
    "caf\u00e9 \U0001f468\u200d\U0001f469\u200d\U0001f467 500",
    "\u0301combining",
]
TOLERANCE = 1e-4

# What a layout cannot do, and the strategy that takes its place.
GIVES_WAY = {
    (layout, name): name.replace("packed", "token-budget")
    for layout in ("mistral", "gemma2", "gemma2-unwindowed", "gemma3")  # packed attention has no window, no soft cap
    for name in ("packed", "packed+prefix")
}


class Case:
    """A model, a prompt, encoded tickets and their reference scores."""

    def __init__(self, layout: str, names: list[str], *, chat: bool = True) -> None:
        tokenizer = tiny_tokenizer(chat=chat)
        label_set = LabelSet(tuple(Label(name) for name in names), system="Sort.", instruction="Choose.")
        encoder = TicketEncoder(tokenizer, build_prompt(tokenizer, label_set), max_ticket_tokens=200)
        self.layout = layout
        self.prompt = encoder.prompt
        self.tickets = [ticket.ids for ticket in encoder.encode(TEXTS)]
        self.scorers: dict[str, tuple[Strategy, Scorer]] = {}
        self.raw = tiny_model(layout, tokenizer)
        self.reading = LabelReading(LanguageModel(tiny_model(layout, tokenizer), self.prompt.trie), self.prompt)
        self.expected = self.score("per-item", self.tickets, Limits())

    def score(self, name: str, tickets: list[np.ndarray], limits: Limits) -> np.ndarray:
        if name not in self.scorers:
            self.scorers[name] = build_scorer(STRATEGIES[name], self.reading)
        strategy, scorer = self.scorers[name]
        assert strategy.name == GIVES_WAY.get((self.layout, name), name)
        bounded = Limits(limits.batch_tickets, limits.batch_tokens, scorer.layout.shared_tokens)
        batches = strategy.planner(scorer.layout.lengths(tickets), bounded)
        return restore_order(batches, [scorer.score(batch, tickets) for batch in batches])


@pytest.fixture(scope="module", params=[(layout, labels) for layout in LAYOUTS for labels in LABEL_SETS], ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    layout, labels = request.param
    return Case(layout, LABEL_SETS[labels])


def assert_agree(scores: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(scores - expected).max() <= TOLERANCE
    assert (scores.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != REFERENCE.name])
def test_strategy_gives_the_reference_scores(case: Case, name: str) -> None:
    """Whatever the batch size, the order of tickets and their repeats."""
    few = slice(1, 4)
    assert_agree(case.score(name, case.tickets[few], Limits(batch_tickets=1, batch_tokens=60)), case.expected[few])
    assert_agree(case.score(name, case.tickets, Limits(batch_tickets=32, batch_tokens=1920)), case.expected)
    mixed, expected = [*case.tickets[::-1], *case.tickets], np.concatenate([case.expected[::-1], case.expected])
    assert_agree(case.score(name, mixed, Limits(batch_tickets=3, batch_tokens=400)), expected)


def test_reference_is_constrained_decoding(case: Case) -> None:
    """Judged by the whole model's own logits, label by label, one forward pass per token of each label."""
    for ticket, scores in zip(case.tickets, case.expected, strict=True):
        start = [*case.prompt.prefix.tolist(), *ticket.tolist(), *case.prompt.suffix.tolist()]
        for label, sequence in enumerate(case.prompt.sequences):
            total = 0.0
            for depth, token in enumerate(sequence):
                allowed = {other[depth] for other in case.prompt.sequences if other[:depth] == sequence[:depth]}
                if len(allowed) > 1:
                    with torch.inference_mode():
                        logits = case.raw(torch.tensor([[*start, *sequence[:depth]]])).logits[0, -1].double()
                    total += float(logits[token] - torch.logsumexp(logits[sorted(allowed)], 0))
            assert scores[label] == pytest.approx(total, abs=TOLERANCE)


def test_probabilities_sum_to_one(case: Case) -> None:
    assert np.exp(case.expected.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(len(case.tickets)), abs=1e-5)


def test_scores_tell_labels_apart(case: Case) -> None:
    """A guard for the tests above: on these models a wrong mask or position shows far beyond the tolerance."""
    assert case.expected.std(axis=0).min() > 100 * TOLERANCE


@pytest.mark.parametrize("layout", ["gpt2", "llama"])
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_models_without_chat_template(layout: str, name: str) -> None:
    case = Case(layout, LABEL_SETS["multi-token"], chat=False)
    assert_agree(case.score(name, case.tickets, Limits(batch_tickets=4, batch_tokens=300)), case.expected)


def test_order_of_labels_changes_only_the_prompt() -> None:
    """With the prompt's ids held fixed, permuted labels get the same bits."""
    case = Case("qwen2", LABEL_SETS["multi-token"])
    shuffled = Case("qwen2", LABEL_SETS["multi-token"][::-1])
    prompt = shuffled.prompt.__class__(
        case.prompt.prefix, case.prompt.suffix, shuffled.prompt.trie, shuffled.prompt.sequences
    )
    model = LanguageModel(tiny_model("qwen2", tiny_tokenizer()), prompt.trie)
    reference = Reference(LabelReading(model, prompt))
    batch = STRATEGIES["arrival"].planner(reference.layout.lengths(case.tickets), Limits())[0]
    assert (reference.score(batch, case.tickets)[:, ::-1] == case.expected).all()


def test_prefix_cache_is_not_changed_by_batches() -> None:
    """The same batch twice gives the same bits: a forward pass grows its own copy of the cache only."""
    case = Case("qwen2", LABEL_SETS["single-token"])
    _, scorer = build_scorer(STRATEGIES["arrival+prefix"], case.reading)
    first, second = STRATEGIES["arrival+prefix"].planner(scorer.layout.lengths(case.tickets), Limits(batch_tickets=5))
    before = scorer.score(first, case.tickets)
    scorer.score(second, case.tickets)
    assert (scorer.score(first, case.tickets) == before).all()


def test_strategy_that_is_wrong_on_a_model_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache that is filled wrongly is noticed before the first ticket, said once, and costs no label."""
    case = Case("qwen2", LABEL_SETS["single-token"])
    honest = LanguageModel.prefix_cache

    def spoiled(self: LanguageModel, prefix: list[int]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        return tuple((keys * 1.1, values) for keys, values in honest(self, prefix))

    monkeypatch.setattr(LanguageModel, "prefix_cache", spoiled)
    strategy, _ = build_scorer(STRATEGIES["bucketed+prefix"], case.reading)
    assert strategy.name == "bucketed"
    assert sum("does not fit this model" in message for message in caplog.messages) == 1
