"""Attention over tickets that lie end to end, with the prefix attended to by all at once.

Registered with transformers' `AttentionInterface`, so that every architecture that uses it gains and no model code is
rewritten. Per layer there are two partial attentions, merged by their log-sum-exp, which is exact (the same identity
that flash attention uses between its blocks; Dao et al. 2022, arXiv:2205.14135):

    (a) every token to the prefix's keys: one product for the whole batch; query heads that share a key-value head are
        laid end to end, so that keys are never repeated;
    (b) every ticket to itself, causally (encoders: both ways): tickets of similar length are lifted out of the row
        into small padded groups, so that a few calls serve all of them. Only attention sees that padding; linear layers
        never do.

Keys and queries arrive rotated, positions being explicit, so nothing here depends on where a ticket lies. That is for
CPUs; on a GPU one kernel does both (`flex`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ticket_etl.collate import Inputs, Span
from ticket_etl.flex import FlexPacking
from ticket_etl.trie import LabelTrie

if TYPE_CHECKING:
    from ticket_etl.network import Network, PrefixCache

NAME = "ticket_etl_packed"

_GROUP_SLACK = 1.25
"""Longest over shortest ticket of a group: bounds the padding that attention sees."""


@dataclass(frozen=True)
class Group:
    """Tickets of similar length, lifted out of the row.

    gather: int64, shape (tickets * longest,): the token of the row at each place; padding points at the ticket's end.
    scatter: int64, shape (tokens,): where each of the group's tokens lies in the padded group, flattened.
    tokens: int64, shape (tokens,): where the same tokens lie in the row.
    mask: additive, broadcast to (tickets, 1, longest, longest), or None where none is needed.
    causal: whether, without a mask, a token sees only what stands before it.
    """

    tickets: int
    longest: int
    gather: torch.Tensor
    scatter: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor | None
    causal: bool


class PackedBatch(Protocol):
    """A batch of tickets that lie end to end in one row."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Attention of each token to the prefix and its own ticket: (1, tokens, heads, head dimension).

        Args:
            module: the model's attention layer.
            query, key, value: as in `packed_attention`.
        """
        ...


class Packing(Protocol):
    """Makes packed batches for one prompt."""

    def batch(self, inputs: Inputs, model: "Network") -> PackedBatch:
        """What the attention function needs to know of one batch."""
        ...


def packing_for(model: "Network", prefix: "PrefixCache | None", labels: LabelTrie) -> Packing:
    """How tickets are packed on the model's device; `prefix` is the prompt's shared cache, if it is shared."""
    return FlexPacking(prefix, labels) if model.device.type == "cuda" else GroupedPacking(prefix, labels)


class GroupedPacking:
    """Makes `GroupedBatch`es: see `packing_for`."""

    def __init__(self, prefix: "PrefixCache | None", labels: LabelTrie) -> None:
        self._prefix = prefix
        self._nodes = labels.node_sees

    def batch(self, inputs: Inputs, model: "Network") -> "GroupedBatch":
        """The groups of one batch."""
        return GroupedBatch(self._prefix, tuple(self._group(spans, model) for spans in _similar(inputs.spans)))

    def _group(self, spans: list[Span], model: "Network") -> Group:
        starts = np.array([span.start for span in spans])[:, None]
        lengths = np.array([span.stop - span.start for span in spans])[:, None]
        longest = int(lengths.max())
        places = np.arange(longest)[None]
        real = places < lengths
        gather = starts + np.minimum(places, lengths - 1)
        scatter = np.flatnonzero(real)
        arrays = (gather.reshape(-1), scatter, gather.reshape(-1)[scatter])
        gathers, scatters, tokens = (torch.as_tensor(array, device=model.device) for array in arrays)
        mask = self._mask(lengths[:, 0], longest, model)
        return Group(len(spans), longest, gathers, scatters, tokens, mask, model.causal and mask is None)

    def _mask(self, lengths: np.ndarray, longest: int, model: "Network") -> torch.Tensor | None:
        """Causal, but for label nodes, which see the prompt and their ancestors; encoders see all but padding."""
        count = len(self._nodes)
        if not model.causal:
            real = np.arange(longest) < lengths[:, None, None]
            return None if real.all() else model.additive_mask(real)
        if not count:
            return None
        sees = np.tile(np.tril(np.ones((longest, longest), dtype=np.bool_)), (len(lengths), 1, 1))
        for ticket, length in enumerate(lengths):
            sees[ticket, length - count : length, length - count : length] = self._nodes
        return model.additive_mask(sees)


@dataclass(frozen=True)
class GroupedBatch:
    """See `PackedBatch`."""

    prefix: "PrefixCache | None"
    groups: tuple[Group, ...]

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """See `PackedBatch.attend`."""
        # (tokens, heads, dimension), as the linear layers leave them: a token's heads lie together and move as one.
        states = [each[0].transpose(0, 1) for each in (query, key, value)]
        out = torch.empty(states[0].shape, dtype=query.dtype)
        lse = torch.empty(out.shape[:2], dtype=torch.float32)
        for group in self.groups:
            _attend_to_self(group, states, scaling, out, lse)
        if self.prefix is not None:
            keys, values = self.prefix[module.layer_idx]  # type: ignore[index]
            to_prefix, lse_prefix = _attend_to_prefix(query, keys, values, scaling)
            weight = torch.sigmoid(lse_prefix - lse.view(lse_prefix.shape)).unsqueeze(-1).to(out.dtype)
            out.view(to_prefix.shape).lerp_(to_prefix, weight)
        return out[None]


def enable_packing(model: "Network") -> None:
    """Switch the model to packed attention, which is scaled dot-product attention for batches that are not packed.

    Raises:
        NotImplementedError: packing is not available on this device or for this kind of attention.
    """
    if model.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"packed attention is not available on {model.device.type}")
    if model.sliding_window.tokens is not None:
        raise NotImplementedError("packed attention has no sliding window")
    if model.attention not in (
        "sdpa",
        NAME,
    ):  # soft caps or attention sinks, say: loaded with an attention that has them
        raise NotImplementedError(f"packed attention cannot stand in for {model.attention} attention")
    model.use_attention(NAME)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed_batch: PackedBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function in the sense of transformers' `AttentionInterface`.

    Args:
        query: (1, heads, tokens, head dimension).
        key, value: (1, key-value heads, tokens, head dimension).
        packed_batch: the batch's layout; without it this is plain scaled dot-product attention.

    Returns:
        (1, tokens, heads, head dimension), and no weights.
    """
    if packed_batch is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return packed_batch.attend(module, query, key, value, scaling), None


def _attend_to_self(
    group: Group, states: Sequence[torch.Tensor], scaling: float | None, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Each ticket of a group to itself; results go to the tokens' places in `out` and `lse`.

    Args:
        states: queries, keys and values, each (tokens, heads, dimension).
        out, lse: (tokens, heads, dimension) and (tokens, heads).
    """
    lifted = []
    for each in states:
        part = each.index_select(0, group.gather).unflatten(0, (group.tickets, group.longest))
        repeats = out.shape[1] // each.shape[1]
        lifted.append((part if repeats == 1 else part.repeat_interleave(repeats, 2)).transpose(1, 2))
    mask = None if group.mask is None else group.mask.expand(-1, -1, group.longest, -1)
    partial, partial_lse = _flash(*lifted, causal=group.causal, mask=mask, scale=scaling)
    for target, result in ((out, partial), (lse, partial_lse)):
        target.index_copy_(0, group.tokens, result.transpose(1, 2).flatten(0, 1).index_select(0, group.scatter))


def _attend_to_prefix(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every token to every key of the prefix; query heads of one key-value head are laid end to end.

    Returns:
        (tokens, key-value heads, repeats, dimension) and (tokens, key-value heads, repeats).
    """
    _, heads, tokens, dim = query.shape
    groups = key.shape[1]
    folded = query.reshape(1, groups, heads // groups * tokens, dim)
    partial, lse = _flash(folded, key, value, causal=False, mask=None, scale=scaling)
    apart = (groups, heads // groups, tokens)
    return partial.view(*apart, dim).permute(2, 0, 1, 3), lse.view(apart).permute(2, 0, 1)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool,
    mask: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its log-sum-exp: (tickets, heads, tokens, dimension) and (tickets, heads, tokens).

    torch's own CPU kernel behind scaled_dot_product_attention, which alone returns the log-sum-exp.
    """
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return output, lse


def _similar(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans in groups of similar length, longest first."""
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start - span.stop):
        longest = groups[-1][0] if groups else None
        if longest is None or longest.stop - longest.start > _GROUP_SLACK * (span.stop - span.start):
            groups.append([])
        groups[-1].append(span)
    return groups


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
