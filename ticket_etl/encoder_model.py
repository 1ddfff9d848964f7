"""The adapter around a sentence encoder: tokens see both ways within their piece, and the states are pooled.

A ticket longer than the model's input is read in pieces. The mean is taken over the tokens of all of them, so that a
piece counts by its length; `cls` is the mean of the pieces' first states.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.collate import Inputs, Layout
from ticket_etl.head import FeaturePart
from ticket_etl.kernels import PRECISIONS
from ticket_etl.network import Network, Pool, features_of
from ticket_etl.prompt import Prompt


class EncoderModel(Network):
    """A sentence encoder that yields features.

    Args:
        model: a loaded encoder in evaluation mode, without a pooling layer.
        first_position: the position id of a sequence's first token.
        precisions: see `Network`.
    """

    causal = False

    def __init__(self, model: PreTrainedModel, first_position: int = 0, precisions: Sequence[str] = PRECISIONS) -> None:
        super().__init__(model, None, precisions)
        self._first_position = first_position

    @torch.inference_mode()
    def features_alone(self, prompt: Prompt, ticket: TokenIds, parts: Sequence[FeaturePart]) -> FloatArray:
        """Features of one ticket, each piece run alone, unpadded and unmasked: float32, shape (features,)."""
        pieces = []
        for piece in prompt.split(ticket):
            whole = np.concatenate([prompt.prefix, piece, prompt.suffix]).astype(np.int64)
            ids = self._tensor(whole[None])
            places = self._first_position + torch.arange(ids.shape[1], device=self.device)[None]
            pieces.append(self._run(None, input_ids=ids, position_ids=places, output_hidden_states=True).hidden_states)
        pooled = []
        for part in parts:
            states = [hidden[part.layer][0] for hidden in pieces]
            pooled.append(torch.cat([each if part.pooling == "mean" else each[:1] for each in states]).float().mean(0))
        return torch.cat(pooled).cpu().numpy()

    @torch.inference_mode()
    def features(self, inputs: Inputs, parts: Sequence[FeaturePart], **how: Any) -> FloatArray:
        """Features of a batch: float32, shape (tickets, features).

        Poolings: `mean` over all tokens of the ticket's pieces, special ones included, as sentence-transformers has it;
        `cls` over the pieces' first tokens.
        """
        width = inputs.token_ids.shape[1]
        firsts = [span.row * width + span.start for span in inputs.spans]
        pools = {
            "mean": Pool.over(inputs.spans, width, whole=True),
            "cls": Pool(np.array(firsts), np.array([span.ticket for span in inputs.spans])),
        }
        deeper = any(part.layer != self.num_layers for part in parts)
        outputs = self._run(
            None,
            input_ids=self._tensor(inputs.token_ids),
            position_ids=self._tensor(inputs.positions + self._first_position),
            output_hidden_states=deeper,
            **how,
        )
        states = dict(enumerate(outputs.hidden_states)) if deeper else {self.num_layers: outputs.last_hidden_state}
        return features_of(states, parts, pools, len(inputs.reads))

    def attention_mask(self, inputs: Inputs, layout: Layout) -> dict[str, Any]:  # noqa: ARG002 - see `Network`
        """See `Network.attention_mask`: a token sees its own piece, both ways; padding sees padding."""
        piece = np.full(inputs.token_ids.shape, -1)
        for number, span in enumerate(inputs.spans):
            piece[span.row, span.start : span.stop] = number
        return {"attention_mask": self.additive_mask(piece[:, :, None] == piece[:, None, :])}
