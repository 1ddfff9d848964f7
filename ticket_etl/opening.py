"""Opening a model for reading: weights, tokenizer and prompt of either kind, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ticket_etl.config import ScoringConfig
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.errors import UsageError
from ticket_etl.head import FeaturePart, Head
from ticket_etl.kernels import FLOAT32
from ticket_etl.labels import LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.models import ModelFolder
from ticket_etl.models.loading import load_encoder, load_model
from ticket_etl.models.pooling import read_pooling
from ticket_etl.prompt import Prompt, TicketEncoder, build_encoder_prompt, build_prompt
from ticket_etl.readings import FeatureReading, HeadReading, LabelReading, Reading

SIMILARITY_TEMPERATURE = 0.05
"""What cosines are divided by before the softmax."""

ChoosePrecisions = Callable[[PreTrainedModel, Prompt], Sequence[str]]
"""Told the loaded model and its prompt, says which precisions `Network.at` will be asked for."""

CONTENT_FREE = ("N/A", "[MASK]", "...")
"""Tickets that say nothing: what the model answers to them is its prior."""


@dataclass(frozen=True)
class OpenModel:
    """A model that stands ready.

    parts: what a head may be fitted on, the model's own pooling of its last layer first.
    """

    network: LanguageModel | EncoderModel
    encoder: TicketEncoder
    parts: tuple[FeaturePart, ...]
    folder: ModelFolder
    labels: LabelSet
    calibrate: bool = False

    @property
    def bound_to(self) -> dict[str, str]:
        """See `bound_to`."""
        return bound_to(self.folder, self.encoder.prompt)

    def reading(self, head: Head | None = None) -> Reading:
        """How labels are read: by a head, by likeness to the labels (encoders), or by constrained decoding.

        Raises:
            UsageError: the head belongs to another model, prompt or label list, two labels are the same to an encoder,
                or there is no prior to calibrate.
        """
        prompt = self.encoder.prompt
        if self.calibrate and (head is not None or isinstance(self.network, EncoderModel)):
            raise UsageError("--calibrate is for causal models that decode their labels; leave it out")
        if head is not None:
            head.check(self.bound_to, self.labels.names)
            return HeadReading(self.network, prompt.without_branches(), head)
        if isinstance(self.network, EncoderModel):
            check_labels_differ(self.encoder, self.labels)
            return HeadReading(self.network, prompt, self.label_head())
        reading = LabelReading(self.network, prompt)
        content_free = [ticket.ids for ticket in self.encoder.encode(CONTENT_FREE)]
        return reading.calibrated(content_free) if self.calibrate else reading

    def feature_reading(self) -> FeatureReading:
        """All the features that a head may be fitted on."""
        return FeatureReading(self.network, self.encoder.prompt, self.parts)

    def label_head(self) -> Head:
        """An encoder's labels as a head: the cosine of a ticket with each label, over a temperature.

        A label is the mean of the unit vectors of its name with its description, and of its examples.
        """
        parts = self.parts[:1]
        rows = []
        for label in self.labels.labels:
            tickets = [ticket.ids for ticket in self.encoder.encode(label.texts)]
            vectors = np.stack([self.network.features_alone(self.encoder.prompt, ids, parts) for ids in tickets])
            mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0)
            rows.append(mean / np.linalg.norm(mean))
        weight = (np.stack(rows) / SIMILARITY_TEMPERATURE).astype(np.float32)
        bias = np.zeros(len(rows), dtype=np.float32)
        return Head(self.labels.names, parts, True, weight, bias, bound_to=self.bound_to)


def bound_to(folder: ModelFolder, prompt: Prompt) -> dict[str, str]:
    """What a head is bound to: it means nothing on the features of another model or prompt."""
    return {"model": folder.revision, "prompt": prompt.fingerprint}


def check_labels_differ(encoder: TicketEncoder, labels: LabelSet) -> None:
    """Make sure that an encoder can tell labels apart by their texts.

    Raises:
        UsageError: two labels are the same tokens: spelt alike but for capitals, say, or in a script it does not know.
    """
    seen: dict[tuple[bytes, ...], str] = {}
    for label in labels.labels:
        tokens = tuple(ticket.ids.tobytes() for ticket in encoder.encode(label.texts))
        if (twin := seen.setdefault(tokens, label.name)) != label.name:
            raise UsageError(
                f"labels {twin!r} and {label.name!r} are the same tokens to this model;"
                " rename one of them, or give them descriptions"
            )


def only_float32(model: PreTrainedModel, prompt: Prompt) -> Sequence[str]:  # noqa: ARG001 - see `ChoosePrecisions`
    """Weights are packed in float32 alone."""
    return (FLOAT32,)


def open_model(
    config: ScoringConfig,
    labels: LabelSet,
    folder: ModelFolder,
    device: str,
    dtype: torch.dtype,
    choose: ChoosePrecisions = only_float32,
) -> OpenModel:
    """Load a model of either kind in a dtype; `choose` says in which precisions its weights are to be packed.

    Raises:
        ModelError: the model cannot be loaded.
        UsageError: the labels do not suit the model.
    """
    if folder.kind == "encoder":
        pooling = read_pooling(folder)
        model, tokenizer = load_encoder(folder, device=device, dtype=dtype)
        encoder = ticket_encoder(config, labels, folder, tokenizer, None)
        network = EncoderModel(model, pooling.first_position, choose(model, encoder.prompt))
        own = FeaturePart(pooling.mode, network.num_layers)
        return OpenModel(network, encoder, (own,), folder, labels, config.calibrate)
    model, tokenizer = load_model(folder, device=device, dtype=dtype)
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    encoder = ticket_encoder(config, labels, folder, tokenizer, context)
    causal = LanguageModel(model, encoder.prompt.trie, choose(model, encoder.prompt))
    last = causal.num_layers
    parts = (FeaturePart("mean", last), FeaturePart("last", last), FeaturePart("mean", max(1, last // 2)))
    return OpenModel(causal, encoder, parts, folder, labels, config.calibrate)


def ticket_encoder(
    config: ScoringConfig,
    labels: LabelSet,
    folder: ModelFolder,
    tokenizer: PreTrainedTokenizerBase,
    context_tokens: int | None,
) -> TicketEncoder:
    """The prompt of a model and what encodes tickets for it; needs no weights.

    Args:
        context_tokens: a causal model's longest input; encoders read longer tickets in pieces.
    """
    longest = config.max_ticket_tokens
    if folder.kind == "encoder":
        pooling = read_pooling(folder)
        prompt = build_encoder_prompt(tokenizer, labels, pooling.max_seq_length)
        return TicketEncoder(tokenizer, prompt, max_ticket_tokens=longest, lower_case=pooling.lower_case)
    prompt = build_prompt(tokenizer, labels)
    return TicketEncoder(tokenizer, prompt, max_ticket_tokens=longest, context_tokens=context_tokens)
