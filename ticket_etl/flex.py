"""Packed attention on a GPU: one FlexAttention kernel for all tickets of a row, the shared prefix included.

    keys      prefix | tokens of the row
    a token   sees all of the prefix and, of its own ticket, what stands before it; a label node sees its ancestors,
              and an encoder's token the whole of its piece

Tickets being contiguous, a block of queries sees the prefix and one run of keys; all other blocks of the mask are
skipped, and it is never written out (J. Dong et al., Flex Attention, 2024, arXiv:2412.05496).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ticket_etl.collate import Inputs
from ticket_etl.trie import LabelTrie

if TYPE_CHECKING:
    from ticket_etl.network import Network, PrefixCache

BLOCK = 128
"""Queries, and keys, of a block of the mask."""

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of row, head, query and key, as indices: whether the query sees the key."""


@dataclass(frozen=True)
class FlexBatch:
    """See `attention.PackedBatch`."""

    prefix: "PrefixCache | None"
    mask: BlockMask

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """See `attention.PackedBatch.attend`."""
        if self.prefix is not None:
            shared_keys, shared_values = self.prefix[module.layer_idx]  # type: ignore[index]
            key, value = torch.cat([shared_keys, key], dim=2), torch.cat([shared_values, value], dim=2)
        grouped = query.shape[1] != key.shape[1]
        out: torch.Tensor = _kernel(query.device.type)(
            query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=grouped
        )
        return out.transpose(1, 2)


class FlexPacking:
    """Makes `FlexBatch`es for one prompt: `prefix` is its shared cache, if it is shared."""

    def __init__(self, prefix: "PrefixCache | None", labels: LabelTrie) -> None:
        self._prefix = prefix
        self._shared = 0 if prefix is None else prefix[0][0].shape[-2]
        nodes = len(labels.nodes)
        self._node_sees = np.zeros((nodes + 1, nodes + 1), dtype=np.bool_)
        """Of label nodes, counted from 1; 0 stands for a token that is none."""
        if nodes:
            self._node_sees[1:, 1:] = labels.node_sees

    def batch(self, inputs: Inputs, model: "Network") -> FlexBatch:
        """The mask of one batch, which has one row."""
        tokens, nodes = inputs.token_ids.shape[1], len(self._node_sees) - 1
        spans, node_at, stops = np.zeros((3, tokens), dtype=np.int64)
        for number, span in enumerate(inputs.spans):
            spans[span.start : span.stop] = number
            stops[span.start : span.stop] = span.stop
            node_at[span.stop - nodes : span.stop] = 1 + np.arange(nodes)
        starts = np.array([span.start for span in inputs.spans])[spans]
        sees = self._mask_function(spans, node_at, model)
        seen_until = 1 + np.arange(tokens) if model.causal else stops
        partly, wholly = self._seen_blocks(starts, seen_until)
        mask = BlockMask.from_kv_blocks(
            *_listed(partly, model.device),
            *_listed(wholly, model.device),
            BLOCK_SIZE=BLOCK,
            mask_mod=sees,
            seq_lengths=(tokens, self._shared + tokens),
            compute_q_blocks=False,  # they are for the backward pass
        )
        return FlexBatch(self._prefix, mask)

    def _mask_function(
        self, spans: npt.NDArray[np.int64], node_at: npt.NDArray[np.int64], model: "Network"
    ) -> MaskFunction:
        """Args: per token of the row its span, and its label node."""
        arrays = (spans, node_at, self._node_sees)
        span_of, node_of, node_sees = (torch.as_tensor(array, device=model.device) for array in arrays)
        shared, causal = self._shared, model.causal

        def sees(_row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            key = (place - shared).clamp(min=0)
            own = span_of[query] == span_of[key]
            if causal:
                nodes = (node_of[query] > 0) & (node_of[key] > 0)
                own = own & torch.where(nodes, node_sees[node_of[query], node_of[key]], key <= query)
            return own | (place < shared)

        return sees

    def _seen_blocks(
        self, first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Blocks of the mask, shape (blocks of queries, blocks of keys): those to look into, those seen as a whole.

        Args:
            first, stop: per query, which tokens of the row it may see, non-decreasing.
        """
        queries = -(-len(first) // BLOCK)
        lows = (self._shared + first[::BLOCK]) // BLOCK
        highs = (self._shared + np.array([stop[at : at + BLOCK][-1] for at in range(0, len(stop), BLOCK)]) - 1) // BLOCK
        keys = np.arange(-(-(self._shared + len(first)) // BLOCK))
        wholly = np.tile(keys < self._shared // BLOCK, (queries, 1))
        run = (lows[:, None] <= keys) & (keys <= highs[:, None])
        border = keys * BLOCK < self._shared
        return (run | border) & ~wholly, wholly


def _listed(blocks: npt.NDArray[np.bool_], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks there are for each block of queries, and which, first in each row: int32 with two axes of 1."""
    counts = blocks.sum(axis=1).astype(np.int32)
    indices = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.as_tensor(counts, device=device)[None, None], torch.as_tensor(indices, device=device)[None, None]


@cache
def _kernel(device: str) -> Any:
    """The fused kernel on a GPU; elsewhere the plain one, which is right and slow, for tests."""
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention
