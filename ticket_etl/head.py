"""A linear head on pooled hidden states and words: what it is, its file, and what it is bound to.

The file is safetensors, the arrays by their names, with everything else as JSON in its metadata; no pickle.
Applying a head needs numpy only.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import FloatArray
from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import UsageError
from ticket_etl.trie import log_softmax
from ticket_etl.words import Ids, Words

_METADATA = "ticket-etl-head"
_VERSION = 2
_WORD_ARRAYS = {"words.word_of": "word_of", "words.idf": "idf", "words.weight": "weight"}


@dataclass(frozen=True)
class FeaturePart:
    """One block of a feature vector: the hidden states after `layer` layers, pooled over a ticket.

    pooling: causal models have `mean` (over the ticket's own tokens) and `last` (where its label is read), encoders
        `mean` or `cls`.
    layer: the model's number of layers stands for the last one, after its final norm.
    """

    pooling: str
    layer: int

    def __str__(self) -> str:
        return f"{self.pooling}@{self.layer}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The part that is written like this.

        >>> FeaturePart.parse("mean@30")
        FeaturePart(pooling='mean', layer=30)
        """
        pooling, _, layer = text.partition("@")
        return cls(pooling, int(layer))


@dataclass(frozen=True)
class Head:
    """Log-probabilities of labels: log softmax of `weight @ features + bias`, plus the logits of words if it has any.

    parts: the blocks of a feature vector, in this order, all of one size.
    unit: whether each block is divided by its L2 norm first.
    weight, bias: float32, shapes (labels, features) and (labels,).
    bound_to: what else the features depend on, by name: the model's revision, the prompt.
    min_score: a label below this probability does not stand; None where no such threshold was learned.
    words: what the ticket's words say, beside the features; None where they were not learned from.
    """

    labels: tuple[str, ...]
    parts: tuple[FeaturePart, ...]
    unit: bool
    weight: FloatArray
    bias: FloatArray
    bound_to: Mapping[str, str] = field(default_factory=dict)
    min_score: float | None = None
    words: Words | None = None

    def log_probs(self, features: FloatArray, tickets: Sequence[Ids]) -> FloatArray:
        """Log-probabilities: float32, shape (tickets, labels).

        Args:
            features: float32, shape (tickets, features); a row that is not finite gives NaN.
            tickets: each one's own token ids.
        """
        usable = np.isfinite(features).all(axis=1, keepdims=True)
        values = np.where(usable, features, 0.0).astype(np.float64)
        if self.unit:
            blocks = values.reshape(len(values), len(self.parts), -1)
            norms = np.linalg.norm(blocks, axis=2, keepdims=True)
            values = (blocks / np.where(norms > 0, norms, 1.0)).reshape(len(values), -1)
        logits = np.where(usable, values @ self.weight.T.astype(np.float64) + self.bias, np.nan)
        if self.words is not None:
            logits += self.words.logits(tickets)
        return log_softmax(logits).astype(np.float32)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides a score; `min_score` decides which labels stand."""
        digest = hashlib.sha256(replace(self, min_score=None)._metadata().encode())
        for name, array in self._arrays().items():
            digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()

    def check(self, bound_to: Mapping[str, str], labels: Sequence[str]) -> None:
        """Make sure that this head belongs to a model, prompt and label list.

        Raises:
            UsageError: it does not; the message names what differs.
        """
        different = [name for name, value in self.bound_to.items() if bound_to.get(name) != value]
        if tuple(labels) != self.labels:
            different.append("label list")
        if different:
            raise UsageError(
                f"the head was fitted with another {' and '.join(different)};"
                " use it with what it was fitted with, or fit it again"
            )

    def save(self, path: Path) -> None:
        """Write the head to a file, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
        """
        from safetensors.numpy import save

        data = save(self._arrays(), metadata={_METADATA: self._metadata()})
        with replace_atomically(path) as file:
            file.write(data)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {"weight": self.weight, "bias": self.bias}
        if self.words is not None:
            arrays |= {name: getattr(self.words, field) for name, field in _WORD_ARRAYS.items()}
        return arrays

    def _metadata(self) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "labels": self.labels,
                "parts": [str(part) for part in self.parts],
                "unit": self.unit,
                "bound_to": dict(self.bound_to),
                "min_score": self.min_score,
            },
            ensure_ascii=False,
            sort_keys=True,
        )


def load_head(path: Path) -> Head:
    """Read a head's file.

    Raises:
        UsageError: it cannot be read, or is no head; the message names the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            facts = json.loads((file.metadata() or {})[_METADATA])
            if facts["version"] != _VERSION:
                raise UsageError(f"the head {path} was made by another version of this program; fit it again")
            words = _WORD_ARRAYS.keys() & set(file.keys())
            head = Head(
                tuple(facts["labels"]),
                tuple(map(FeaturePart.parse, facts["parts"])),
                bool(facts["unit"]),
                file.get_tensor("weight"),
                file.get_tensor("bias"),
                facts["bound_to"],
                facts["min_score"],
                Words(**{field: file.get_tensor(name) for name, field in _WORD_ARRAYS.items()}) if words else None,
            )
            shapes = {head.weight.shape[:1], head.bias.shape}
            if head.words is not None:
                shapes.add(head.words.weight.shape[:1])
            if shapes != {(len(head.labels),)}:
                raise ValueError("its tensors do not fit its labels")
            return head
    except OSError as error:
        raise UsageError(f"cannot read the head {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a head made by ticket-etl fit; name its output") from error
