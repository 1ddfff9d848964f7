"""Reading the features that a head is fitted on, by the same batches as `classify` scores labels with."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
import transformers

from ticket_etl import __version__
from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.config import ScoringConfig
from ticket_etl.fingerprint import fingerprint_text
from ticket_etl.head import FeaturePart
from ticket_etl.labels import LabelSet
from ticket_etl.models import ModelFolder
from ticket_etl.scorers import score_plan
from ticket_etl.scoring import Scoring


class FeatureReader:
    """A model that yields features and, from the same pass, zero-shot log-probabilities.

    labels: their names.
    parts: the blocks that can be read, each of one vector a text.
    word_table: the word that each token id stands for.
    likeness: an encoder's zero-shot weights on its own pooling at unit length; None for causal models.
    bound_to: what a head on these features is bound to; `fingerprint` has all that they depend on besides the texts.

    Raises:
        ModelError, UsageError: see `Scoring`.
    """

    def __init__(self, config: ScoringConfig, labels: LabelSet, folder: ModelFolder) -> None:
        self._scoring = Scoring(config, labels, folder, features=True)
        opened = self._scoring.opened
        self.labels = labels.names
        self.parts: tuple[FeaturePart, ...] = opened.parts
        self.bound_to = opened.bound_to
        versions = (__version__, torch.__version__, transformers.__version__)
        read_by = (dataclasses.asdict(labels), opened.encoder.max_ticket_tokens, str(self._scoring.dtype))
        self.fingerprint = fingerprint_text([self.bound_to, *read_by, *versions])
        self.word_table = opened.encoder.word_table()
        self._label_head = opened.label_head() if folder.kind == "encoder" else None
        self.likeness = None if self._label_head is None else self._label_head.weight

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """The token ids of each text, as the model reads it."""
        return [ticket.ids for ticket in self._scoring.encoder.encode(texts)]

    def read(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> tuple[dict[FeaturePart, FloatArray], FloatArray]:
        """Features of each part, float32 of shape (texts, size), and zero-shot log-probabilities (texts, labels)."""
        scoring = self._scoring
        values = score_plan(scoring.scorer, scoring.strategy, scoring.limits, self.encode(texts), on_progress)
        size = scoring.model.hidden_size
        blocks = np.split(values, [size * (at + 1) for at in range(len(self.parts))], axis=1)
        features = dict(zip(self.parts, blocks, strict=False))
        own = self.parts[:1]
        zero_shot = blocks[-1] if self._label_head is None else self._label_head.log_probs(features[own[0]], ())
        return features, zero_shot
