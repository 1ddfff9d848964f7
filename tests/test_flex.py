"""The GPU's packed attention, judged by the reference; off a GPU its plain kernel computes the same, slowly."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from tests.test_agreement import LABEL_SETS, Case, assert_agree
from ticket_etl.flex import BLOCK, FlexPacking
from ticket_etl.plan import Limits


@pytest.mark.parametrize(
    ("layout", "labels"), [("llama", "single-token"), ("qwen2", "prefixes"), ("gpt2", "multi-token")]
)
@pytest.mark.parametrize("name", ["packed", "packed+prefix"])
def test_scores_are_the_references(gpu_packings: list[FlexPacking], layout: str, labels: str, name: str) -> None:
    case = Case(layout, LABEL_SETS[labels])
    for tokens in (60, 700):
        assert_agree(case.score(name, case.tickets, Limits(batch_tokens=tokens)), case.expected)
    assert len(gpu_packings) == 1


@pytest.mark.parametrize("name", ["packed", "packed+prefix"])
def test_no_visible_key_is_in_a_skipped_block(gpu_packings: list[FlexPacking], name: str) -> None:
    """Held against the whole mask, since the plain kernel does not skip."""
    case = Case("llama", LABEL_SETS["prefixes"])
    case.score(name, case.tickets[:2], Limits())
    layout = case.scorers[name][1].layout
    tickets = [np.resize(case.tickets[1], length) for length in (1, 300, 40, 90, 128, 7, 5, 200)]
    strategy = case.scorers[name][0]
    (batch,) = strategy.planner(
        layout.lengths(tickets), Limits(batch_tokens=10_000, shared_tokens=layout.shared_tokens)
    )
    mask = gpu_packings[0].batch(layout.collate(batch, tickets), case.reading.model).mask
    queries, keys = mask.seq_lengths
    assert queries > 4 * BLOCK
    sees = create_mask(mask.mask_mod, None, None, queries, keys, device="cpu")[0, 0]
    padding = (0, -keys % BLOCK, 0, -queries % BLOCK)
    blocks = [
        torch.nn.functional.pad(sees, padding, value=value).unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        for value in (False, True)
    ]
    some, every = blocks[0].any(3).any(1), blocks[1].all(3).all(1)
    partly, wholly = (
        _dense(counts[0, 0], indices[0, 0])
        for counts, indices in (
            (mask.kv_num_blocks, mask.kv_indices),
            (mask.full_kv_num_blocks, mask.full_kv_indices),
        )
    )
    assert not (partly & wholly).any()
    assert (some <= (partly | wholly)).all()
    assert (wholly <= every).all()
    assert (partly | wholly).float().mean() < 0.9, "nothing is skipped"


def _dense(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    listed = torch.zeros(indices.shape, dtype=torch.bool)
    for row, count in enumerate(counts.tolist()):
        listed[row, indices[row, :count].long()] = True
    return listed
