"""Packed matrix products: exact where they claim to be, and absent where they are wrong or missing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny import LAYOUTS, save_tiny_model, tiny_model, tiny_tokenizer
from ticket_etl import kernels
from ticket_etl.config import ScoringConfig
from ticket_etl.kernels import BFLOAT16, FLOAT32, PLAIN, PrepackedGatedMlp, PrepackedLinear, Switch, install_kernels
from ticket_etl.labels import Label, LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.models import find_model
from ticket_etl.plan import Limits
from ticket_etl.prompt import build_prompt
from ticket_etl.readings import LabelReading
from ticket_etl.scorers import Reference, build_scorer, score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.strategies import REFERENCE, STRATEGIES


class Mlp(nn.Module):
    """A gated MLP, as decoders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(24, 40, bias=False)
        self.up_proj = nn.Linear(24, 40, bias=False)
        self.down_proj = nn.Linear(40, 24, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(tokens)) * self.up_proj(tokens))


class Layer(nn.Module):
    """A layer with a gated MLP, or without one."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp


class Block(nn.Module):
    """Two layers, the last of them with a gated MLP, a linear layer with a bias, and an output matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(nn.Identity()), Layer(Mlp())])
        self.out = nn.Linear(24, 16)
        self.head = nn.Linear(16, 5)

    @property
    def mlp(self) -> nn.Module:
        return self.layers[1].mlp

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(self.mlp(tokens)))


@pytest.fixture
def block() -> Block:
    return Block().requires_grad_(False)


def test_layers_are_replaced_but_for_the_head(block: Block) -> None:
    switch = install_kernels(block, block.head, 2)
    assert switch.available == (FLOAT32, BFLOAT16)
    assert isinstance(block.mlp, PrepackedGatedMlp)
    assert isinstance(block.out, PrepackedLinear)
    assert type(block.head) is nn.Linear


def test_precisions_agree_with_the_plain_layers(block: Block) -> None:
    """float32 to rounding, bfloat16 to its eight bits; and without a precision, to the last bit."""
    tokens = torch.randn(2, 7, 24)
    expected = block(tokens)
    switch = install_kernels(block, block.head, 2)
    assert torch.equal(block(tokens), expected)
    for precision, tolerance in ((FLOAT32, 1e-5), (BFLOAT16, 3e-2)):
        with switch.using(precision):
            result = block(tokens)
        assert result.dtype == torch.float32
        assert torch.allclose(result, expected, atol=tolerance)
    assert switch.precision == PLAIN


def test_last_mlp_computes_only_what_is_read(block: Block) -> None:
    """Positions that nobody reads come out as zeros, the others as ever."""
    tokens = torch.randn(2, 7, 24)
    expected = block.mlp(tokens).reshape(14, 24)
    switch = install_kernels(block, block.head, 2)
    reads = torch.tensor([3, 13])
    with switch.using(FLOAT32, reads):
        result = block.mlp(tokens).reshape(14, 24)
    assert torch.allclose(result[reads], expected[reads], atol=1e-5)
    assert result.count_nonzero() == 2 * 24
    with switch.using(PLAIN, reads):
        assert torch.equal(block.mlp(tokens).reshape(14, 24), expected)


def test_mlp_before_the_last_layer_computes_all(block: Block) -> None:
    """Though it is the last one with a gated MLP: a later layer's attention looks at every position."""
    block.layers = nn.ModuleList([block.layers[1], Layer(nn.Identity())])
    tokens = torch.randn(2, 7, 24)
    expected = block.layers[0].mlp(tokens)
    switch = install_kernels(block, block.head, 2)
    with switch.using(FLOAT32, torch.tensor([3, 13])):
        assert torch.allclose(block.layers[0].mlp(tokens), expected, atol=1e-5)


def test_operators_that_are_missing_leave_the_model_as_it_was(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(kernels, "_pack", missing)
    assert install_kernels(block, block.head, 2).available == ()
    assert type(block.out) is nn.Linear


def test_operators_that_are_wrong_are_not_used(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = kernels._pack
    monkeypatch.setattr(kernels, "_pack", lambda weight, dtype: honest(weight * 1.01, dtype))
    assert FLOAT32 not in install_kernels(block, block.head, 2).available


def test_fusion_that_is_wrong_is_not_used(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """The MLP then runs layer by layer."""
    honest = PrepackedLinear.product_times
    monkeypatch.setattr(PrepackedLinear, "product_times", lambda *arguments: honest(*arguments) * 1.5)
    install_kernels(block, block.head, 2)
    assert not isinstance(block.mlp, PrepackedGatedMlp)
    assert isinstance(block.mlp.gate_proj, PrepackedLinear)


def test_precision_that_is_not_available_means_plain() -> None:
    switch = Switch(available=(FLOAT32,))
    with switch.using(BFLOAT16):
        assert switch.precision == PLAIN


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_packed_float32_gives_the_reference_scores(layout: str) -> None:
    """On every layout, whichever of its layers could be packed; the reference itself runs on the plain layers."""
    tokenizer = tiny_tokenizer()
    prompt = build_prompt(tokenizer, LabelSet((Label("billing a"), Label("billing b"), Label("bug"))))
    plain = LabelReading(LanguageModel(tiny_model(layout, tokenizer), prompt.trie), prompt)
    random = np.random.default_rng(0)
    tickets = [random.integers(5, 300, size).astype(np.int32) for size in (3, 40, 11, 1)]
    expected = score_plan(Reference(plain), REFERENCE, Limits(), tickets)
    strategy, scorer = build_scorer(STRATEGIES["packed+prefix"], plain.at(FLOAT32))
    assert np.abs(score_plan(scorer, strategy, Limits(), tickets) - expected).max() <= 1e-4


@pytest.mark.parametrize("missing", [True, False])
def test_bfloat16_that_is_missing_is_float32_and_said(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The report then names the precision that was used, and there is nothing to certify."""
    honest = kernels._all_pass
    if missing:
        monkeypatch.setattr(kernels, "_all_pass", lambda layers, name: name == FLOAT32 and honest(layers, name))
    config = ScoringConfig(input="", dtype="bfloat16")
    labels = LabelSet((Label("billing"), Label("bug")))
    scoring = Scoring(config, labels, find_model(str(save_tiny_model(tmp_path))))
    assert scoring.dtype == (torch.float32 if missing else torch.bfloat16)
    assert (scoring.certifier() is None) == missing
    assert ("no bfloat16 matrix products" in caplog.text) == missing


def test_memory_stays_flat_over_a_thousand_shapes() -> None:
    """Without the bound, this takes hundreds of MB."""
    if not kernels._all_pass([nn.Linear(8, 8)], FLOAT32):
        pytest.skip("no packed matrix products on this machine")
    script = """
from ticket_etl.process import prepare_memory
prepare_memory()
import torch
from ticket_etl.machine import peak_memory_bytes
from ticket_etl.kernels import PrepackedLinear, Switch
switch = Switch(available=("float32",))
layer = PrepackedLinear(torch.nn.Linear(64, 64), switch, ("float32",))
states = torch.randn(2000, 64)
with torch.inference_mode(), switch.using("float32"):
    for count in range(500, 600):
        layer(states[None, :count])
    before = peak_memory_bytes()
    for count in range(1000, 2000):
        layer(states[None, :count])
print((peak_memory_bytes() - before) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
