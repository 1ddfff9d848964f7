"""What both kinds of model have in common: a loaded transformers network, its precisions, and pooled features.

Everything that depends on that library's ways stands here and in the two kinds, `language_model` and `encoder_model`.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from ticket_etl.arrays import FloatArray
from ticket_etl.collate import Inputs, Layout, Span
from ticket_etl.head import FeaturePart
from ticket_etl.kernels import BFLOAT16, PLAIN, Switch, install_kernels

PrefixCache = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Per layer the keys and values of the prefix, each of shape (1, key-value heads, prefix tokens, head dimension)."""


@dataclass(frozen=True)
class SlidingWindow:
    """The model's sliding attention window in tokens, and the names of the layer kinds that masks are made for."""

    tokens: int | None
    layer_kinds: tuple[str, ...]


class Network:
    """A loaded model in evaluation mode, run on batches laid out by `collate`.

    Args:
        model: on a CPU in float32 its linear layers are given prepacked weights beside their own.
        output: its output matrix, which is left alone; None if it has none.
        precisions: those that `at` will be asked for.

    A fresh instance runs on the model's own layers (`precision` is `plain`); `at` gives the same model in another.
    """

    causal: bool
    """Whether a token sees only what stands before it."""

    def __init__(self, model: PreTrainedModel, output: nn.Module | None, precisions: Sequence[str]) -> None:
        self._model = model
        self.device: torch.device = next(model.parameters()).device
        self.config = model.config.get_text_config(decoder=True)
        self.num_layers: int = self.config.num_hidden_layers
        self.hidden_size: int = self.config.hidden_size
        self.dtype: torch.dtype = model.dtype
        self.precision = PLAIN
        packs = self.device.type == "cpu" and self.dtype == torch.float32
        self._switch = install_kernels(model, output, self.num_layers, precisions) if packs else Switch()

    def at(self, precision: str) -> Self:
        """The same model with its matrix products in another precision, or as it is where that is not available."""
        other = copy.copy(self)
        other.precision = precision if precision in self._switch.available else self.precision
        return other

    @property
    def is_low_precision(self) -> bool:
        """Whether matrix products are done in less than float32."""
        return self.dtype != torch.float32 or self.precision == BFLOAT16

    @property
    def sliding_window(self) -> SlidingWindow:
        """The sliding window, if the model has one."""
        kinds = tuple(dict.fromkeys(getattr(self.config, "layer_types", None) or ()))
        tokens = getattr(self.config, "sliding_window", None)
        return SlidingWindow(tokens if "sliding_attention" in kinds or not kinds else None, kinds)

    def parameters_per_token(self) -> int:
        """Parameters that multiply every token: all but the embeddings and the output matrix."""
        total = sum(parameter.numel() for parameter in self._model.parameters())
        return total - sum(parameter.numel() for parameter in self._embeddings())

    def matrix_shapes(self) -> Counter[tuple[int, int]]:
        """The weight matrices that multiply every token, as (outputs, inputs), with how many there are of each."""
        embeddings = {id(parameter) for parameter in self._embeddings()}
        weights = (p for p in self._model.parameters() if p.ndim == 2 and id(p) not in embeddings)
        return Counter((weight.shape[0], weight.shape[1]) for weight in weights)

    @property
    def attention(self) -> str:
        """The name of the attention function in transformers' `AttentionInterface`."""
        return str(self._model.config._attn_implementation)

    def use_attention(self, name: str) -> None:
        """Switch the attention function, by its name."""
        self._model.set_attn_implementation(name)

    def attention_mask(self, inputs: Inputs, layout: Layout) -> dict[str, Any]:
        """The mask of a padded batch, as arguments of the forward pass; none where the model's own is right."""
        raise NotImplementedError

    def prefix_cache(self, prefix: Sequence[int]) -> PrefixCache:
        """Keys and values of the prefix, computed once and never changed: `expand` copies them."""
        raise NotImplementedError

    def expand(self, prefix: PrefixCache, rows: int) -> dict[str, Any]:
        """A fresh cache that holds the prefix once per row, as arguments of the forward pass."""
        raise NotImplementedError

    def additive_mask(self, sees: npt.NDArray[np.bool_]) -> torch.Tensor:
        """(rows, queries, keys) of bool -> (rows, 1, queries, keys) of 0 and the lowest finite number."""
        allowed = torch.as_tensor(sees[:, None], device=self.device)
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, torch.finfo(self.dtype).min)

    def _embeddings(self) -> list[torch.Tensor]:
        """Parameters that are looked up, not multiplied."""
        return [table.weight for table in self._model.modules() if isinstance(table, nn.Embedding)]

    def _run(self, reads: torch.Tensor | None, **arguments: Any) -> Any:
        """A forward pass; `reads` are the flattened positions whose last states are wanted, None for all."""
        with self._switch.using(self.precision, reads):
            return self._model(**arguments)

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)


@dataclass(frozen=True)
class Pool:
    """Which of a batch's states make which ticket's feature: means over positions.

    positions: int64, shape (n,), into the flattened rows.
    tickets: int64, shape (n,): the ticket of each, as its place in `Batch.tickets`.
    """

    positions: npt.NDArray[np.int64]
    tickets: npt.NDArray[np.int64]

    @classmethod
    def over(cls, spans: Sequence[Span], width: int, *, whole: bool) -> "Pool":
        """Pool over the tickets' own tokens, or over the `whole` of their spans."""
        columns = [np.arange(span.start, span.stop) if whole else np.arange(*span.own) for span in spans]
        positions = [span.row * width + each for span, each in zip(spans, columns, strict=True)]
        tickets = [np.full(len(each), span.ticket) for span, each in zip(spans, columns, strict=True)]
        return cls(np.concatenate(positions), np.concatenate(tickets))

    def mean(self, states: torch.Tensor, tickets: int) -> torch.Tensor:
        """(rows, width, size) -> (tickets, size), in float32; a ticket without a token gets zeros."""
        flat = states.reshape(-1, states.shape[-1])
        of = torch.as_tensor(self.tickets, device=states.device)
        sums = torch.zeros(tickets, flat.shape[1], dtype=torch.float32, device=states.device)
        sums.index_add_(0, of, flat[torch.as_tensor(self.positions, device=states.device)].float())
        return sums / torch.bincount(of, minlength=tickets).clamp(min=1)[:, None]


def features_of(
    states: dict[int, torch.Tensor], parts: Sequence[FeaturePart], pools: dict[str, Pool], tickets: int
) -> FloatArray:
    """Feature vectors, the parts one after the other: float32, shape (tickets, features).

    Args:
        states: per layer, shape (rows, width, hidden size).
        pools: per pooling, what it takes the mean of.
    """
    pooled = [pools[part.pooling].mean(states[part.layer], tickets) for part in parts]
    return torch.cat(pooled, dim=1).cpu().numpy()
