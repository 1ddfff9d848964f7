"""The adapter around a transformers causal model: everything that depends on that library's ways stands here.

A forward pass yields the logits of the labels' tokens only, at the few positions that are asked for. The model's own
code runs unchanged (its soft caps and scales included); only its output matrix is replaced by the label rows, in
float32.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ticket_etl.collate import Inputs, Layout
from ticket_etl.errors import ModelError
from ticket_etl.kernels import BFLOAT16, PLAIN, PRECISIONS, Switch, install_kernels
from ticket_etl.trie import LabelTrie

FloatArray = npt.NDArray[np.float32]
PrefixCache = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Per layer the keys and values of the prefix, each of shape (1, key-value heads, prefix tokens, head dimension)."""


class LabelRows(nn.Module):
    """Stands in for the output matrix: few rows, few positions, float32.

    Args:
        output: the model's own output layer.
        rows: token ids whose logits are wanted, shape (rows,).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, output: nn.Linear, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", output.weight.detach()[rows].float())
        self.register_buffer("bias", None if output.bias is None else output.bias.detach()[rows].float())
        self.reads: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows of the batch, width, hidden size) -> (1, reads, label rows), at the flattened positions `reads`."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return nn.functional.linear(flat[self.reads].float(), self.weight, self.bias)[None]


@dataclass(frozen=True)
class Window:
    """The model's sliding attention window in tokens, and the names of the layer kinds that masks are made for."""

    tokens: int | None
    layer_kinds: tuple[str, ...]


class LanguageModel:
    """A causal model that scores labels.

    Args:
        model: a loaded decoder-only model in evaluation mode; its output layer is replaced, and on a CPU in float32 its
            linear layers are given packed weights beside their own.
        labels: the label trie whose token rows are kept.
        precisions: those that `at` will be asked for.

    A fresh instance runs on the model's own layers (`precision` is `plain`); `at` gives the same model in another.

    Raises:
        ModelError: the model has no plain output matrix.
    """

    def __init__(self, model: PreTrainedModel, labels: LabelTrie, precisions: Sequence[str] = PRECISIONS) -> None:
        output = model.get_output_embeddings()
        if not isinstance(output, nn.Linear):
            raise ModelError(
                f"{type(model).__name__} has no plain output matrix to take label rows from; use another model"
            )
        self._model = model
        self.device: torch.device = output.weight.device
        self._head = LabelRows(output, torch.as_tensor(labels.rows, device=self.device))
        model.set_output_embeddings(self._head)
        self.config = model.config.get_text_config(decoder=True)
        self.dtype: torch.dtype = model.dtype
        self.precision = PLAIN
        packs = self.device.type == "cpu" and self.dtype == torch.float32
        self._switch = install_kernels(model, output, precisions) if packs else Switch()
        # transformers renamed the keyword; both names are within the supported range.
        parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
        self._cache_word = "cache" if "cache" in parameters else "past_key_values"

    def at(self, precision: str) -> "LanguageModel":
        """The same model with its matrix products in another precision, or as it is where that is not available."""
        other = copy.copy(self)
        other.precision = precision if precision in self._switch.available else self.precision
        return other

    @property
    def is_low_precision(self) -> bool:
        """Whether matrix products are done in less than float32."""
        return self.dtype != torch.float32 or self.precision == BFLOAT16

    @property
    def window(self) -> Window:
        """The sliding window, if the model has one."""
        kinds = tuple(dict.fromkeys(getattr(self.config, "layer_types", None) or ()))
        tokens = getattr(self.config, "sliding_window", None)
        return Window(tokens if "sliding_attention" in kinds or not kinds else None, kinds)

    def parameters_per_token(self) -> int:
        """Parameters that multiply every token: all but the embeddings and the output matrix."""
        embedding = self._model.get_input_embeddings()
        total = sum(parameter.numel() for parameter in self._model.parameters())
        return total - sum(parameter.numel() for parameter in embedding.parameters())

    def matrix_shapes(self) -> Counter[tuple[int, int]]:
        """The weight matrices that multiply every token, as (outputs, inputs), with how many there are of each."""
        embeddings = self._model.get_input_embeddings()
        weights = (p for p in self._model.parameters() if p.ndim == 2 and p is not embeddings.weight)
        return Counter((weight.shape[0], weight.shape[1]) for weight in weights)

    def use_attention(self, name: str) -> None:
        """Switch the attention function, by its name in transformers' `AttentionInterface`."""
        self._model.set_attn_implementation(name)

    @torch.inference_mode()
    def logits_alone(self, token_ids: Sequence[int]) -> FloatArray:
        """Label-row logits after one plain, unpadded, uncached sequence: float32, shape (rows,)."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        self._head.reads = torch.tensor([ids.shape[1] - 1], device=self.device)
        return self._to_numpy(self._run(input_ids=ids, use_cache=False).logits[0, 0])

    @torch.inference_mode()
    def logits(self, inputs: Inputs, **how: Any) -> FloatArray:
        """Label-row logits of a batch: float32, shape (tickets, branches, rows)."""
        self._head.reads = torch.as_tensor(inputs.reads.reshape(-1), device=self.device)
        outputs = self._run(
            input_ids=torch.as_tensor(inputs.token_ids, device=self.device),
            position_ids=torch.as_tensor(inputs.positions, device=self.device),
            **({"use_cache": False} | how),
        )
        return self._to_numpy(outputs.logits[0].reshape(*inputs.reads.shape, -1))

    @torch.inference_mode()
    def prefix_cache(self, prefix: Sequence[int]) -> PrefixCache:
        """Keys and values of the prefix, computed once and never changed: `expand` copies them."""
        cache = DynamicCache()
        ids = torch.tensor([list(prefix)], device=self.device)
        self._head.reads = torch.tensor([0], device=self.device)
        self._run(input_ids=ids, use_cache=True, **{self._cache_word: cache})
        layers = tuple((layer.keys.clone(), layer.values.clone()) for layer in cache.layers)  # type: ignore[union-attr]
        if any(keys.shape[-2] != len(prefix) for keys, _ in layers):
            raise ValueError("the model's cache does not hold one entry per prefix token")
        return layers

    def expand(self, prefix: PrefixCache, rows: int) -> dict[str, Any]:
        """A fresh cache that holds the prefix once per row, as arguments for `logits`.

        A forward pass grows the cache it is given, so each batch gets its own.
        """
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        return {self._cache_word: cache, "use_cache": True}

    def attention_mask(self, inputs: Inputs, layout: Layout) -> dict[str, Any]:
        """The mask of a padded batch, as arguments for `logits`; none where the model's own causal mask is right.

        A token sees the shared prefix and everything before it in its row; a label node sees the prompt and its own
        ancestors. Padding stands behind the ticket, where causal attention never looks.

                       prefix | ticket suffix | nodes
            ticket, suffix  1 | causal        | 0
            nodes           1 | 1             | ancestors and itself
        """
        rows, width = inputs.token_ids.shape
        nodes, shared = layout.prompt.labels.node_sees, layout.shared_tokens
        if not shared and not len(nodes):
            return {}
        sees = np.broadcast_to(
            np.tril(np.ones((width, width), dtype=np.bool_)), (rows if len(nodes) else 1, width, width)
        )
        if len(nodes):
            sees = sees.copy()
            for span in inputs.spans:
                tail = slice(span.stop - len(nodes), span.stop)
                sees[span.row, tail, tail] = nodes
        full = np.concatenate([np.ones((*sees.shape[:2], shared), dtype=np.bool_), sees], axis=2)
        window = self.window
        masks = {"full_attention": self._additive(full)}
        if window.tokens is not None:
            places = np.concatenate([np.tile(np.arange(shared), (rows, 1)), inputs.positions], axis=1)
            near = inputs.positions[:, :, None] - places[:, None, :] < window.tokens
            masks["sliding_attention"] = self._additive(full & near)
            if not window.layer_kinds:
                return {"attention_mask": masks["sliding_attention"]}
        if len(window.layer_kinds) > 1:
            return {"attention_mask": {kind: masks[kind] for kind in window.layer_kinds}}
        return {"attention_mask": masks[window.layer_kinds[0] if window.layer_kinds else "full_attention"]}

    def _additive(self, sees: npt.NDArray[np.bool_]) -> torch.Tensor:
        """(rows, queries, keys) of bool -> (rows, 1, queries, keys) of 0 and the lowest finite number."""
        allowed = torch.as_tensor(sees[:, None], device=self.device)
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, torch.finfo(self.dtype).min)

    def _run(self, **arguments: Any) -> Any:
        with self._switch.using(self.precision, self._head.reads):
            return self._model(**arguments)

    @staticmethod
    def _to_numpy(logits: torch.Tensor) -> FloatArray:
        return logits.float().cpu().numpy()
