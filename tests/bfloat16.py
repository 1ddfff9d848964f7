"""A stand-in for bfloat16 products, for processors that have none: what is built on them is tested everywhere."""

import pytest
import torch
from torch.nn import functional

from ticket_etl import kernels

HAS_BFLOAT16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()

_ACTIVATIONS = {"none": lambda x: x, "swish": functional.silu, "gelu": functional.gelu}


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Let float32 products of bfloat16 numbers take the place of missing bfloat16 ones, in this process.

    The sums are those that the real ones give but for the order of adding; their speed is not.
    """
    if HAS_BFLOAT16:
        return
    real_pack = kernels._pack
    real_product, real_product_times = kernels.PrepackedLinear.product, kernels.PrepackedLinear.product_times

    def pack(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return weight.detach().to(dtype).float() if dtype == torch.bfloat16 else real_pack(weight, dtype)

    def product(
        self: kernels.PrepackedLinear, tokens: torch.Tensor, precision: str, then: str = "none"
    ) -> torch.Tensor:
        if precision != kernels.BFLOAT16:
            return real_product(self, tokens, precision, then)
        bias = self._biases[precision]
        sums = functional.linear(tokens.float(), self._weights[precision], None if bias is None else bias.float())
        return _ACTIVATIONS[then](sums).bfloat16()

    def product_times(
        self: kernels.PrepackedLinear, tokens: torch.Tensor, other: torch.Tensor, precision: str
    ) -> torch.Tensor:
        if precision != kernels.BFLOAT16:
            return real_product_times(self, tokens, other, precision)
        return self.product(tokens, precision) * other

    patch.setattr(kernels, "_pack", pack)
    patch.setattr(kernels.PrepackedLinear, "product", product)
    patch.setattr(kernels.PrepackedLinear, "product_times", product_times)
