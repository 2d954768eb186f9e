"""Linear layers of a `transformers` module whose weights are stored in FP8.

The files tell which they are: a weight of type F8_E4M3 with a scale beside it. The lists of layers
in config.json say the same, and are not read. Static scales of inputs are used where they are
stored; for stored scales of keys and values see kv_scales.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module, Parameter

from engine.errors import UnsupportedModel
from engine.fp8.values import E4M3, Scales, dequantised, joined_scales, plain_product, scales_of
from engine.weights.empty_module import FUSED
from engine.weights.stored_tensors import StoredTensor, TensorReader

Tensor = torch.Tensor

_SCALES = ("weight_scale_inv", "weight_scale")
_INPUT_SCALE = "input_scale"


class Fp8Linear(torch.nn.Linear):
    """A linear layer that keeps its weight in FP8; its parameters have the names of the files."""

    def __init__(self, plain: torch.nn.Linear, scale: str, shapes: Mapping[str, Any]) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        self.weight = _parameter(plain.weight.shape, E4M3)
        self.bias = plain.bias
        self._scale = scale
        for name, shape in shapes.items():
            self.register_parameter(name, _parameter(shape, torch.float32))

    @property
    def scales(self) -> Scales:
        """The scales of the weight and of the inputs."""
        fixed = self._parameters.get(_INPUT_SCALE)
        return scales_of(self.weight.shape, getattr(self, self._scale), fixed)

    def multiply(self, factor: float) -> None:
        """Multiply the weight by a power of two, which is exact."""
        scale: Tensor = getattr(self, self._scale)
        scale.mul_(factor)

    def expect_inputs(self, factor: float) -> None:
        """Take inputs that are multiplied by a power of two from now on."""
        if (fixed := self._parameters.get(_INPUT_SCALE)) is not None:
            fixed.mul_(factor)

    def forward(self, input: Tensor) -> Tensor:
        """The product by operations that any device has: the reference of the faster products."""
        rows = input.flatten(0, -2)
        out = plain_product(rows, self.weight, self.scales, self.bias)
        return out.view(*input.shape[:-1], -1)


def fp8_linears(model: Module, stored: Mapping[str, StoredTensor]) -> list[str]:
    """The names of the linear layers that are stored in FP8.

    UnsupportedModel where another tensor is, or where projections of one input differ in it.
    """
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and _is_fp8(stored.get(f"{name}.weight"))
    ]
    known = {f"{name}.weight" for name in found}
    for name, parameter in stored.items():
        if _is_fp8(parameter) and name not in known:
            raise UnsupportedModel(f"{name} is stored in FP8 and is no weight of a linear layer")
    for name, _ in model.named_modules():
        for names in FUSED:
            inside = [f"{name}.{part}" in found for part in names]
            if any(inside) and not all(inside):
                raise UnsupportedModel(f"{name}: of {', '.join(names)} only some are FP8")
    return found


def keep_fp8(model: Module, names: list[str], stored: Mapping[str, StoredTensor]) -> None:
    """Replace these layers of a module without memory by layers that keep FP8."""
    for name in names:
        plain: Any = model.get_submodule(name)
        scale = _scale_of(name, stored)
        beside = [one for one in (scale, _INPUT_SCALE) if f"{name}.{one}" in stored]
        shapes = {one: stored[f"{name}.{one}"].shape for one in beside}
        model.set_submodule(name, Fp8Linear(plain, scale, shapes))


def read_dequantised(
    name: str, stored: Mapping[str, StoredTensor], weight: Tensor, reader: TensorReader
) -> None:
    """Fill the weight of a layer that is stored in FP8, in the weight's own type."""
    kept, beside = stored_with_scale(name, stored)
    values = torch.empty(kept.shape, dtype=E4M3, device=weight.device)
    scale = torch.empty(beside.shape, dtype=torch.float32, device=weight.device)
    reader.read([(kept, values), (beside, scale)])
    weight.copy_(dequantised(values, scales_of(values.shape, scale, None), weight.dtype))


def stored_with_scale(
    name: str, stored: Mapping[str, StoredTensor]
) -> tuple[StoredTensor, StoredTensor]:
    """The weight of a layer that is stored in FP8, and its scale."""
    return stored[f"{name}.weight"], stored[f"{name}.{_scale_of(name, stored)}"]


def scales_beside(parts: list[Any]) -> Scales | None:
    """The scales of layers whose weights are fused in this order; None where they are not FP8."""
    if not isinstance(parts[0], Fp8Linear):
        return None
    found = [part.scales for part in parts]
    return found[0] if len(found) == 1 else joined_scales(found, [len(p.weight) for p in parts])


def _scale_of(name: str, stored: Mapping[str, StoredTensor]) -> str:
    for scale in _SCALES:
        if f"{name}.{scale}" in stored:
            return scale
    raise UnsupportedModel(f"{name}.weight is stored in FP8 without a scale")


def _is_fp8(stored: StoredTensor | None) -> bool:
    return stored is not None and stored.dtype == E4M3


def _parameter(shape: Any, dtype: torch.dtype) -> Parameter:
    return Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
