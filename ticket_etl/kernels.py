"""Faster matrix products on a CPU: weights prepacked for oneDNN, gated MLPs fused, float32 or bfloat16.

The operators are those that torch's own compiler emits on CPUs; they are internal to torch, so this module is the
only one that names them, tries each against the plain layer before it is used, and leaves the model as it was where
they are missing or wrong. A layer keeps its own float32 weights beside the prepacked ones: the reference path runs on
them, untouched.

bfloat16 here means bfloat16 matrix products and everything else (norms, rotations, attention, residuals) in float32.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers.activations import GELUActivation, SiLUActivation

log = logging.getLogger("ticket_etl")

PLAIN, FLOAT32, BFLOAT16 = "plain", "float32", "bfloat16"
"""How matrix products are done: by the model's own layers, or by prepacked weights of a precision."""

PRECISIONS = (FLOAT32, BFLOAT16)
_DTYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16}
_TOLERANCES = {FLOAT32: 1e-4, BFLOAT16: 3e-2}
"""Largest error of a layer, relative to its largest output."""

_TRIAL_TOKENS = 33
_PACKED_FOR_TOKENS = 1024


@dataclass
class Switch:
    """Which precision the layers use now; all layers of a model share one."""

    precision: str = PLAIN
    available: tuple[str, ...] = ()
    reads: torch.Tensor | None = None
    """The positions whose output is wanted, as indices into the flattened rows; None for all."""

    @contextmanager
    def using(self, precision: str, reads: torch.Tensor | None = None) -> Iterator[None]:
        """Use a precision within the block; one that is not available means the plain layers."""
        before = self.precision, self.reads
        self.precision, self.reads = precision if precision in self.available else PLAIN, reads
        try:
            yield
        finally:
            self.precision, self.reads = before


class PrepackedLinear(nn.Module):
    """A linear layer with its weights prepacked in each available precision."""

    def __init__(self, plain: nn.Linear, switch: Switch, precisions: tuple[str, ...]) -> None:
        super().__init__()
        self.plain = plain
        self._switch = switch
        # Packed tensors are opaque to torch's module machinery: kept out of its registry.
        self._weights = {name: _pack(plain.weight, _DTYPES[name]) for name in precisions}
        self._biases = {
            name: None if plain.bias is None else plain.bias.detach().to(_DTYPES[name]) for name in precisions
        }

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(..., inputs) -> (..., outputs), in the dtype of `tokens`."""
        precision = self._switch.precision
        if precision == PLAIN:
            return self.plain(tokens)
        return self.product(tokens.to(_DTYPES[precision]), precision).to(tokens.dtype)

    def product(self, tokens: torch.Tensor, precision: str, then: str = "none") -> torch.Tensor:
        """The product in a precision, with an activation (`swish`, or `gelu`, the exact one) fused into it."""
        weight, bias = self._weights[precision], self._biases[precision]
        return torch.ops.mkldnn._linear_pointwise(tokens, weight, bias, then, [], "none" if then == "gelu" else "")

    def product_times(self, tokens: torch.Tensor, other: torch.Tensor, precision: str) -> torch.Tensor:
        """The product, multiplied by `other` element by element."""
        weight, bias = self._weights[precision], self._biases[precision]
        return torch.ops.mkldnn._linear_pointwise.binary(tokens, other, weight, bias, "mul")


class PrepackedGatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)) with the element-wise work fused into the products."""

    def __init__(self, plain: nn.Module, switch: Switch) -> None:
        super().__init__()
        self.plain = plain
        self.is_last = False
        self._switch = switch

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(..., hidden size) -> (..., hidden size), in the dtype of `tokens`.

        In the last layer only the positions that are read are computed: no token looks at another any more.
        """
        precision, reads = self._switch.precision, self._switch.reads
        if precision == PLAIN:
            return self.plain(tokens)
        if not self.is_last or reads is None:
            return self._product(tokens, precision)
        flat = tokens.reshape(-1, tokens.shape[-1])
        return torch.zeros_like(flat).index_copy_(0, reads, self._product(flat[reads], precision)).view_as(tokens)

    def _product(self, tokens: torch.Tensor, precision: str) -> torch.Tensor:
        gate, up, down = (getattr(self.plain, name) for name in _GATED_MLP)
        inputs = tokens.to(_DTYPES[precision])
        gated = up.product_times(inputs, gate.product(inputs, precision, then="swish"), precision)
        return down.product(gated, precision).to(tokens.dtype)


class PrepackedGelu(nn.Module):
    """gelu(dense(x)), the first half of an encoder's MLP, with the activation fused into the product."""

    def __init__(self, plain: nn.Module, switch: Switch) -> None:
        super().__init__()
        self.plain = plain
        self._switch = switch

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(..., hidden size) -> (..., intermediate size), in the dtype of `tokens`."""
        precision = self._switch.precision
        if precision == PLAIN:
            return self.plain(tokens)
        dense = cast(PrepackedLinear, self.plain.dense)
        return dense.product(tokens.to(_DTYPES[precision]), precision, then="gelu").to(tokens.dtype)


_GATED_MLP = ("gate_proj", "up_proj", "down_proj")


def install_kernels(
    model: nn.Module, output: nn.Module | None, num_layers: int, precisions: Iterable[str] = PRECISIONS
) -> Switch:
    """Replace the linear layers and gated MLPs of a float32 CPU model; its `output` matrix is left alone.

    Each of the `precisions` asked for takes memory for a copy of the weights.

    Returns:
        The model's switch; its `available` precisions are those that passed their trial on every shape, none where the
        operators are missing.
    """
    switch = Switch()
    layers = list(_linear_layers(model, output))
    shapes = {(layer.weight.shape, layer.bias is None): layer for _, _, layer in layers}
    switch.available = tuple(name for name in precisions if shapes and _all_pass(shapes.values(), name))
    if switch.available:
        for parent, name, layer in layers:
            setattr(parent, name, PrepackedLinear(layer, switch, switch.available))
        for parent, name, plain, first in list(_fusible(model)):
            fused = PrepackedGatedMlp(plain, switch) if _is_gated_mlp(plain) else PrepackedGelu(plain, switch)
            if all(_is_close(fused, first.plain.in_features, switch, precision) for precision in switch.available):
                setattr(parent, name, fused)
        for part in _last_layer(model, num_layers).children():
            if isinstance(part, PrepackedGatedMlp):
                part.is_last = True
    return switch


def _all_pass(layers: Iterable[nn.Linear], precision: str) -> bool:
    """Hold one layer of every shape, prepacked in a precision, against its plain self."""
    trial = Switch(available=(precision,))
    try:
        return all(
            _is_close(PrepackedLinear(layer, trial, (precision,)), layer.in_features, trial, precision)
            for layer in layers
        )
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.debug("no prepacked %s matrix products here: %s", precision, error)
        return False


def _is_close(
    prepacked: PrepackedLinear | PrepackedGatedMlp | PrepackedGelu, features: int, switch: Switch, precision: str
) -> bool:
    tokens = torch.randn(1, _TRIAL_TOKENS, features, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = prepacked.plain(tokens)
        with switch.using(precision):
            result = prepacked(tokens)
    return bool((result - expected).abs().max() <= _TOLERANCES[precision] * expected.abs().max())


def _pack(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    prepacked: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), _PACKED_FOR_TOKENS)
    return prepacked


def _last_layer(model: nn.Module, num_layers: int) -> nn.Module:
    """The last of the model's stack of layers; an empty module where no such stack is to be seen."""
    stacks = (part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == num_layers)
    return next((stack[-1] for stack in stacks), nn.Identity())


def _linear_layers(model: nn.Module, output: nn.Module | None) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in model.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear) and layer is not output:
                yield parent, name, layer


def _fusible(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module, PrepackedLinear]]:
    """Modules whose activation can be fused into a product: parent, name, module, and its first prepacked layer."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if _is_gated_mlp(layer):
                yield parent, name, layer, getattr(layer, _GATED_MLP[0])
            elif {part for part, _ in layer.named_children()} == {"dense", "intermediate_act_fn"} and _is_exact_gelu(
                layer.intermediate_act_fn
            ):
                yield parent, name, layer, cast(PrepackedLinear, layer.dense)


def _is_gated_mlp(layer: nn.Module) -> bool:
    parts = {part for part, _ in layer.named_children()}
    return parts - {"act_fn"} == {*_GATED_MLP} and isinstance(getattr(layer, "act_fn", None), nn.SiLU | SiLUActivation)


def _is_exact_gelu(activation: object) -> bool:
    return isinstance(activation, GELUActivation) or (
        isinstance(activation, nn.GELU) and activation.approximate == "none"
    )
