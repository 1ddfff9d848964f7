"""Readings: what is taken from the model for each ticket, whatever way the tickets are batched.

`LabelReading` reads the labels' tokens by constrained decoding, `HeadReading` reads pooled hidden states and applies a
head to them (a fitted one, or an encoder's label vectors), `FeatureReading` gives the pooled states themselves, for
those who fit a head. The scorers batch; they do not know what is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.collate import Inputs
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.head import FeaturePart, Head
from ticket_etl.language_model import LanguageModel
from ticket_etl.network import Network
from ticket_etl.prompt import Prompt
from ticket_etl.trie import log_softmax


class Reading(Protocol):
    """What is taken from a model for each ticket."""

    @property
    def model(self) -> Network:
        """The model that is run."""
        ...

    @property
    def prompt(self) -> Prompt:
        """What stands around each ticket."""
        ...

    @property
    def num_values(self) -> int:
        """Numbers read for each ticket."""
        ...

    def at(self, precision: str) -> Self:
        """The same reading with the model in another precision."""
        ...

    def batch(self, inputs: Inputs, **how: Any) -> FloatArray:
        """Read a batch: float32, shape (tickets, values). `how` are arguments of the forward pass."""
        ...

    def alone(self, ticket: TokenIds) -> FloatArray:
        """Read one ticket by itself, unpadded, uncached, without a mask of ours: float32, shape (values,)."""
        ...


@dataclass(frozen=True)
class LabelReading:
    """Log-probabilities of the labels by constrained decoding.

    prior: log-probabilities that the model gives the labels whatever the ticket, float32 of shape (labels,); they are
        taken out, and the rest is renormalised. None for the model's own word.
    """

    model: LanguageModel
    prompt: Prompt
    prior: FloatArray | None = None

    @property
    def num_values(self) -> int:
        """See `Reading`."""
        return len(self.prompt.sequences)

    def at(self, precision: str) -> "LabelReading":
        """See `Reading`."""
        return LabelReading(self.model.at(precision), self.prompt, self.prior)

    def batch(self, inputs: Inputs, **how: Any) -> FloatArray:
        """See `Reading`."""
        return self._calibrate(self.prompt.trie.label_log_probs(self.model.logits(inputs, **how)))

    def alone(self, ticket: TokenIds) -> FloatArray:
        """See `Reading`: one plain forward pass per branch of the label trie, over prompt and path."""
        whole = [*self.prompt.prefix, *ticket, *self.prompt.suffix]
        logits = [self.model.logits_alone([*whole, *branch.path]) for branch in self.prompt.trie.branches]
        return self._calibrate(self.prompt.trie.label_log_probs(np.array([logits], dtype=np.float32)))[0]

    def calibrated(self, content_free: Sequence[TokenIds]) -> "LabelReading":
        """This reading without the prior that shows on tickets without content.

        Contextual calibration (T. Z. Zhao et al., Calibrate before use, ICML 2021): probabilities are divided by their
        mean over a few texts that say nothing.
        """
        probabilities = np.exp(np.stack([self.alone(ticket) for ticket in content_free]).astype(np.float64))
        return replace(self, prior=np.log(probabilities.mean(axis=0)).astype(np.float32))

    def _calibrate(self, log_probs: FloatArray) -> FloatArray:
        """Take the prior out of log-probabilities of shape (tickets, labels)."""
        return (
            log_probs
            if self.prior is None
            else log_softmax((log_probs - self.prior).astype(np.float64)).astype(np.float32)
        )


@dataclass(frozen=True)
class HeadReading:
    """Log-probabilities of the labels by a linear head on pooled hidden states and words."""

    model: LanguageModel | EncoderModel
    prompt: Prompt
    head: Head

    @property
    def num_values(self) -> int:
        """See `Reading`."""
        return len(self.head.labels)

    def at(self, precision: str) -> "HeadReading":
        """See `Reading`."""
        return HeadReading(self.model.at(precision), self.prompt, self.head)

    def batch(self, inputs: Inputs, **how: Any) -> FloatArray:
        """See `Reading`."""
        return self.head.log_probs(self.model.features(inputs, self.head.parts, **how), inputs.tickets())

    def alone(self, ticket: TokenIds) -> FloatArray:
        """See `Reading`."""
        return self.head.log_probs(self.model.features_alone(self.prompt, ticket, self.head.parts)[None], [ticket])[0]


@dataclass(frozen=True)
class FeatureReading:
    """Pooled hidden states, followed by the zero-shot log-probabilities where the same pass gives them."""

    model: LanguageModel | EncoderModel
    prompt: Prompt
    parts: Sequence[FeaturePart]

    @property
    def num_values(self) -> int:
        """See `Reading`."""
        zero_shot = len(self.prompt.sequences) if isinstance(self.model, LanguageModel) else 0
        return len(self.parts) * self.model.hidden_size + zero_shot

    def at(self, precision: str) -> "FeatureReading":
        """See `Reading`."""
        return FeatureReading(self.model.at(precision), self.prompt, self.parts)

    def batch(self, inputs: Inputs, **how: Any) -> FloatArray:
        """See `Reading`."""
        if isinstance(self.model, EncoderModel):
            return self.model.features(inputs, self.parts, **how)
        features, logits = self.model.features_and_logits(inputs, self.parts, **how)
        return np.concatenate([features, self.prompt.trie.label_log_probs(logits)], axis=1)

    def alone(self, ticket: TokenIds) -> FloatArray:
        """See `Reading`."""
        features = self.model.features_alone(self.prompt, ticket, self.parts)
        if isinstance(self.model, EncoderModel):
            return features
        return np.concatenate([features, LabelReading(self.model, self.prompt).alone(ticket)])
