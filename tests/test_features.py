"""Heads on pooled states, of both kinds of model: strategies against the reference, that against plain code."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.test_agreement import GIVES_WAY, LABEL_SETS, TEXTS, TOLERANCE
from tests.tiny import ENCODER_LAYOUTS, LAYOUTS, tiny_encoder, tiny_encoder_tokenizer, tiny_model, tiny_tokenizer
from ticket_etl.arrays import TokenIds
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.flex import FlexPacking
from ticket_etl.head import FeaturePart, Head
from ticket_etl.kernels import FLOAT32
from ticket_etl.labels import Label, LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.network import Network
from ticket_etl.plan import Limits
from ticket_etl.prompt import Prompt, TicketEncoder, build_encoder_prompt, build_prompt
from ticket_etl.readings import FeatureReading, HeadReading, LabelReading, Reading
from ticket_etl.scorers import Reference, build_scorer, score_plan
from ticket_etl.strategies import REFERENCE, STRATEGIES
from ticket_etl.words import Words

LABELS = LabelSet(tuple(Label(name) for name in LABEL_SETS["multi-token"]), system="Sort.", instruction="Choose.")
LONGEST_PIECE = 24


def random_head(network: Network, prompt: Prompt, tickets: Sequence[TokenIds], parts: Sequence[FeaturePart]) -> Head:
    """A head that is sharp and looks at what tells these tickets apart, so that wrong features change labels."""
    random = np.random.default_rng(0)
    features = np.stack([network.features_alone(prompt, ticket, parts) for ticket in tickets])  # type: ignore[attr-defined]
    blocks = features.reshape(len(tickets), len(parts), -1)
    unit = (blocks / np.linalg.norm(blocks, axis=2, keepdims=True)).reshape(len(tickets), -1)
    weight = (20 * random.normal(size=(len(LABELS.names), unit.shape[1]))).astype(np.float32)
    words = int(network.config.vocab_size)
    every_other = np.where(np.arange(words) % 2, np.arange(words), -1).astype(np.int32)
    idf = random.uniform(1, 5, size=words).astype(np.float32)
    said = Words(every_other, idf, random.normal(size=(len(LABELS.names), words)).astype(np.float32))
    return Head(LABELS.names, tuple(parts), True, weight, -weight @ unit.mean(axis=0), words=said)


class Case:
    """A reading, the tickets, and what the reference reads of them."""

    def __init__(self, reading: Reading, tickets: list[TokenIds]) -> None:
        self.reading = reading
        self.tickets = tickets
        self.expected = score_plan(Reference(reading), REFERENCE, Limits(), tickets)


@pytest.fixture(scope="module", params=list(LAYOUTS))
def causal(request: pytest.FixtureRequest) -> tuple[str, Case]:
    tokenizer = tiny_tokenizer()
    encoder = TicketEncoder(tokenizer, build_prompt(tokenizer, LABELS), max_ticket_tokens=200)
    model = LanguageModel(tiny_model(request.param, tokenizer), encoder.prompt.trie)
    parts = [FeaturePart("mean", model.num_layers), FeaturePart("last", model.num_layers), FeaturePart("mean", 1)]
    tickets = [ticket.ids for ticket in encoder.encode(TEXTS)]
    prompt = encoder.prompt.without_branches()
    return request.param, Case(HeadReading(model, prompt, random_head(model, prompt, tickets, parts)), tickets)


@pytest.fixture(scope="module", params=list(ENCODER_LAYOUTS))
def encoder(request: pytest.FixtureRequest) -> tuple[str, Case]:
    tokenizer = tiny_encoder_tokenizer()
    prompt = build_encoder_prompt(tokenizer, LABELS, LONGEST_PIECE)
    tickets = [ticket.ids for ticket in TicketEncoder(tokenizer, prompt, max_ticket_tokens=200).encode(TEXTS)]
    model = EncoderModel(tiny_encoder(request.param, tokenizer), ENCODER_LAYOUTS[request.param][1])
    parts = [FeaturePart("mean", model.num_layers), FeaturePart("cls", model.num_layers), FeaturePart("mean", 1)]
    return request.param, Case(HeadReading(model, prompt, random_head(model, prompt, tickets, parts)), tickets)


def assert_agrees(case: Case, name: str, expected_name: str) -> None:
    strategy, scorer = build_scorer(STRATEGIES[name], case.reading.at(FLOAT32))
    assert strategy.name == expected_name
    for limits in (Limits(batch_tickets=3, batch_tokens=150), Limits(batch_tickets=32, batch_tokens=4000)):
        scores = score_plan(scorer, strategy, limits, case.tickets)
        assert np.abs(scores - case.expected).max() <= TOLERANCE
        assert (scores.argmax(axis=1) == case.expected.argmax(axis=1)).all()


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_heads_on_causal_models_agree(causal: tuple[str, Case], name: str) -> None:
    layout, case = causal
    assert_agrees(case, name, GIVES_WAY.get((layout, name), name))


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_heads_on_encoders_agree(encoder: tuple[str, Case], name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens see both ways, so there is no prefix to share: said once."""
    assert_agrees(encoder[1], name, name.removesuffix("+prefix"))
    assert len(caplog.messages) == name.endswith("+prefix")


def test_heads_agree_in_a_gpus_packing(
    causal: tuple[str, Case], encoder: tuple[str, Case], gpu_packings: list[FlexPacking]
) -> None:
    layout, case = causal
    for name in ("packed", "packed+prefix"):
        assert_agrees(case, name, GIVES_WAY.get((layout, name), name))
    assert_agrees(encoder[1], "packed", "packed")
    assert gpu_packings


def test_tickets_differ_enough(causal: tuple[str, Case], encoder: tuple[str, Case]) -> None:
    """A guard for the tests above: wrong features would show."""
    for _, case in (causal, encoder):
        assert case.expected.std(axis=0).min() > 100 * TOLERANCE
        assert len(set(case.expected.argmax(axis=1))) > 1


def test_causal_features_are_the_hidden_states(causal: tuple[str, Case]) -> None:
    """Judged by the model alone, through transformers' own outputs."""
    layout, case = causal
    raw = tiny_model(layout, tiny_tokenizer())
    prompt, parts = case.reading.prompt, case.reading.head.parts  # type: ignore[attr-defined]
    for ticket in case.tickets:
        ids = torch.tensor([[*prompt.prefix, *ticket, *prompt.suffix]])
        with torch.inference_mode():
            hidden = raw(ids, output_hidden_states=True).hidden_states
        start = len(prompt.prefix)
        own = [hidden[part.layer][0, start : start + len(ticket)].mean(0) for part in parts]
        judged = [hidden[part.layer][0, -1] if part.pooling == "last" else own[at] for at, part in enumerate(parts)]
        features = case.reading.model.features_alone(prompt, ticket, parts)  # type: ignore[attr-defined]
        assert np.abs(features - torch.cat(judged).numpy()).max() <= 1e-4


def test_encoder_features_are_the_hidden_states(encoder: tuple[str, Case]) -> None:
    """Special tokens included; the pieces of a long ticket count by their tokens."""
    layout, case = encoder
    raw = tiny_encoder(layout, tiny_encoder_tokenizer())
    prompt, parts = case.reading.prompt, case.reading.head.parts  # type: ignore[attr-defined]
    assert max(map(len, case.tickets)) > 2 * LONGEST_PIECE
    for ticket in case.tickets:
        pieces = np.array_split(ticket, -(-len(ticket) // (LONGEST_PIECE - 2)))
        states = []
        for piece in pieces:
            with torch.inference_mode():  # positions as the model itself counts them
                states.append(raw(torch.tensor([[*prompt.prefix, *piece, *prompt.suffix]]), output_hidden_states=True))
        for part, features in zip(
            parts,
            case.reading.model.features_alone(prompt, ticket, parts).reshape(len(parts), -1),  # type: ignore[attr-defined]
            strict=True,
        ):
            taken = [each.hidden_states[part.layer][0] for each in states]
            pooled = torch.cat([each if part.pooling == "mean" else each[:1] for each in taken]).mean(0)
            assert np.abs(features - pooled.numpy()).max() <= 1e-5


def test_features_and_labels_come_from_one_pass(causal: tuple[str, Case]) -> None:
    """For fitting: pooled states, then the log-probabilities that constrained decoding gives."""
    layout, _ = causal
    tokenizer = tiny_tokenizer()
    prompt = build_prompt(tokenizer, LABELS)
    model = LanguageModel(tiny_model(layout, tokenizer), prompt.trie)
    tickets = [ticket.ids for ticket in TicketEncoder(tokenizer, prompt, max_ticket_tokens=200).encode(TEXTS)]
    parts = (FeaturePart("mean", model.num_layers), FeaturePart("last", 2))
    both = FeatureReading(model, prompt, parts)
    strategy, scorer = build_scorer(STRATEGIES["token-budget"], both)
    values = score_plan(scorer, strategy, Limits(batch_tokens=300), tickets)
    assert values.shape == (len(tickets), both.num_values)
    labels = score_plan(Reference(LabelReading(model, prompt)), REFERENCE, Limits(), tickets)
    assert np.abs(values[:, 2 * model.hidden_size :] - labels).max() <= TOLERANCE
    for ticket, features in zip(tickets, values, strict=True):
        alone = model.features_alone(prompt, ticket, parts)
        assert np.abs(features[: len(alone)] - alone).max() <= TOLERANCE


def test_calibration_takes_the_prior_out(causal: tuple[str, Case]) -> None:
    """A ticket without content then tells no label from another, and every strategy does the same to the others."""
    layout, _ = causal
    tokenizer = tiny_tokenizer()
    prompt = build_prompt(tokenizer, LABELS)
    plain = LabelReading(LanguageModel(tiny_model(layout, tokenizer), prompt.trie), prompt)
    encoder = TicketEncoder(tokenizer, prompt, max_ticket_tokens=200)
    (content_free,) = (ticket.ids for ticket in encoder.encode(["N/A"]))
    calibrated = plain.calibrated([content_free])
    assert calibrated.alone(content_free) == pytest.approx(np.full(len(LABELS.names), -np.log(5)), abs=1e-5)
    case = Case(calibrated, [ticket.ids for ticket in encoder.encode(TEXTS)])
    before = np.exp(score_plan(Reference(plain), REFERENCE, Limits(), case.tickets))
    weighed = before / np.exp(plain.alone(content_free))
    assert np.exp(case.expected) == pytest.approx(weighed / weighed.sum(axis=1, keepdims=True), abs=1e-5)
    assert_agrees(case, "token-budget+prefix", "token-budget+prefix")
