"""The adapter around a transformers causal model: everything that depends on that library's ways stands here.

A forward pass yields the logits of the labels' tokens only, at the few positions that are asked for. The model's own
code runs unchanged (its soft caps and scales included); only its output matrix is replaced by the label rows, in
float32.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.collate import Inputs, Layout
from ticket_etl.errors import ModelError
from ticket_etl.head import FeaturePart
from ticket_etl.kernels import PRECISIONS
from ticket_etl.network import Network, Pool, PrefixCache, features_of
from ticket_etl.prompt import Prompt
from ticket_etl.trie import LabelTrie


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
        self.states = torch.empty(0)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows of the batch, width, hidden size) -> (1, reads, label rows), at the flattened positions `reads`.

        The hidden states stay in `states`, for those who read features.
        """
        self.states = hidden
        flat = hidden.reshape(-1, hidden.shape[-1])
        return nn.functional.linear(flat[self.reads].float(), self.weight, self.bias)[None]


class LanguageModel(Network):
    """A causal model that scores labels, or yields features.

    Args:
        model: a loaded decoder-only model in evaluation mode; its output layer is replaced.
        labels: the label trie whose token rows are kept.
        precisions: see `Network`.

    Raises:
        ModelError: the model has no plain output matrix.
    """

    causal = True

    def __init__(self, model: PreTrainedModel, labels: LabelTrie, precisions: Sequence[str] = PRECISIONS) -> None:
        output = model.get_output_embeddings()
        if not isinstance(output, nn.Linear):
            raise ModelError(
                f"{type(model).__name__} has no plain output matrix to take label rows from; use another model"
            )
        self._label_rows = LabelRows(output, torch.as_tensor(labels.rows, device=output.weight.device))
        model.set_output_embeddings(self._label_rows)
        super().__init__(model, output, precisions)
        # transformers renamed the keyword; both names are within the supported range.
        parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
        self._cache_word = "cache" if "cache" in parameters else "past_key_values"

    @torch.inference_mode()
    def logits_alone(self, token_ids: Sequence[int]) -> FloatArray:
        """Label-row logits after one plain, unpadded, uncached sequence: float32, shape (rows,)."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        self._label_rows.reads = torch.tensor([ids.shape[1] - 1], device=self.device)
        return _to_numpy(self._run(self._label_rows.reads, input_ids=ids, use_cache=False).logits[0, 0])

    @torch.inference_mode()
    def logits(self, inputs: Inputs, **how: Any) -> FloatArray:
        """Label-row logits of a batch: float32, shape (tickets, branches, rows)."""
        self._label_rows.reads = self._tensor(inputs.reads.reshape(-1))
        outputs = self._run(self._label_rows.reads, **self._arguments(inputs), **({"use_cache": False} | how))
        return _to_numpy(outputs.logits[0].reshape(*inputs.reads.shape, -1))

    @torch.inference_mode()
    def features_alone(self, prompt: Prompt, ticket: TokenIds, parts: Sequence[FeaturePart]) -> FloatArray:
        """Features of one ticket, run plain, unpadded and uncached: float32, shape (features,)."""
        whole = [*prompt.prefix.tolist(), *ticket.tolist(), *prompt.suffix.tolist()]
        own = slice(len(prompt.prefix), len(prompt.prefix) + len(ticket))
        self._label_rows.reads = torch.tensor([len(whole) - 1], device=self.device)
        ids = torch.tensor([whole], device=self.device)
        hidden = self._run(None, input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        states = [(hidden[part.layer][0].float(), part) for part in parts]
        pooled = [each[own].mean(0) if part.pooling == "mean" else each[-1] for each, part in states]
        return torch.cat(pooled).cpu().numpy()

    def features(self, inputs: Inputs, parts: Sequence[FeaturePart], **how: Any) -> FloatArray:
        """Features of a batch: float32, shape (tickets, features).

        Poolings: `mean` over the ticket's own tokens, `last` at the position where its label is read.
        """
        return self.features_and_logits(inputs, parts, **how)[0]

    @torch.inference_mode()
    def features_and_logits(
        self, inputs: Inputs, parts: Sequence[FeaturePart], **how: Any
    ) -> tuple[FloatArray, FloatArray]:
        """Features and label-row logits of a batch from one pass: see `features` and `logits`."""
        tickets = len(inputs.reads)
        pools = {
            "mean": Pool.over(inputs.spans, inputs.token_ids.shape[1], whole=False),
            "last": Pool(inputs.reads[:, 0], np.arange(tickets)),
        }
        self._label_rows.reads = self._tensor(inputs.reads.reshape(-1))
        pooled = [pools[pooling].positions for pooling in {part.pooling for part in parts}]
        wanted = np.unique(np.concatenate([inputs.reads.reshape(-1), *pooled]))
        deeper = any(part.layer != self.num_layers for part in parts)
        how = {"use_cache": False, "output_hidden_states": deeper} | how
        outputs = self._run(self._tensor(wanted), **self._arguments(inputs), **how)
        states = dict(enumerate(outputs.hidden_states)) if deeper else {self.num_layers: self._label_rows.states}
        logits = _to_numpy(outputs.logits[0].reshape(*inputs.reads.shape, -1))
        return features_of(states, parts, pools, tickets), logits

    @torch.inference_mode()
    def prefix_cache(self, prefix: Sequence[int]) -> PrefixCache:
        """See `Network.prefix_cache`."""
        cache = DynamicCache()
        ids = torch.tensor([list(prefix)], device=self.device)
        self._label_rows.reads = torch.tensor([0], device=self.device)
        self._run(self._label_rows.reads, input_ids=ids, use_cache=True, **{self._cache_word: cache})
        layers = tuple((layer.keys.clone(), layer.values.clone()) for layer in cache.layers)  # type: ignore[union-attr]
        if any(keys.shape[-2] != len(prefix) for keys, _ in layers):
            raise ValueError("the model's cache does not hold one entry per prefix token")
        return layers

    def expand(self, prefix: PrefixCache, rows: int) -> dict[str, Any]:
        """See `Network.expand`.

        A forward pass grows the cache it is given, so each batch gets its own.
        """
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        return {self._cache_word: cache, "use_cache": True}

    def attention_mask(self, inputs: Inputs, layout: Layout) -> dict[str, Any]:
        """See `Network.attention_mask`; none where the model's own causal mask is right.

        A token sees the shared prefix and everything before it in its row; a label node sees the prompt and its own
        ancestors. Padding stands behind the ticket, where causal attention never looks.

                       prefix | ticket suffix | nodes
            ticket, suffix  1 | causal        | 0
            nodes           1 | 1             | ancestors and itself
        """
        rows, width = inputs.token_ids.shape
        nodes, shared = layout.prompt.trie.node_sees, layout.shared_tokens
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
        window = self.sliding_window
        masks = {"full_attention": self.additive_mask(full)}
        if window.tokens is not None:
            places = np.concatenate([np.tile(np.arange(shared), (rows, 1)), inputs.positions], axis=1)
            near = inputs.positions[:, :, None] - places[:, None, :] < window.tokens
            masks["sliding_attention"] = self.additive_mask(full & near)
            if not window.layer_kinds:
                return {"attention_mask": masks["sliding_attention"]}
        if len(window.layer_kinds) > 1:
            return {"attention_mask": {kind: masks[kind] for kind in window.layer_kinds}}
        return {"attention_mask": masks[window.layer_kinds[0] if window.layer_kinds else "full_attention"]}

    def _arguments(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tensor(inputs.token_ids), "position_ids": self._tensor(inputs.positions)}


def _to_numpy(logits: torch.Tensor) -> FloatArray:
    return logits.float().cpu().numpy()
