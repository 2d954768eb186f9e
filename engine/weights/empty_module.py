"""A module of `transformers` without memory for its weights, which are then given their places.

The places of projections that are computed as one are parts of one tensor, so that fusing them
copies nothing (engine/model/fused_weights.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook

Tensor = torch.Tensor

# Projections of one input, in the order in which they are fused.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Parameters of modules that this thread makes inside are on the meta device.

    Their buffers are real, and keep the values that the module computes for them.
    """
    here = threading.get_ident()

    def without_memory(module: Module, name: str, parameter: Parameter | None) -> Any:
        if parameter is None or threading.get_ident() != here or parameter.is_meta:
            return None  # as it is: one that is tied is registered again
        return Parameter(parameter.to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(without_memory)
    try:
        yield
    finally:
        hook.remove()


def parameter_bytes(model: Module) -> int:
    """The bytes of all parameters; a tied one counts once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def place_parameters(model: Module, device: torch.device) -> None:
    """Give every parameter memory on the device, without values; tied ones stay tied."""
    placed: dict[int, Parameter] = {}
    for module in model.modules():
        for names in FUSED:
            parts: list[Any] = [getattr(module, name, None) for name in names]
            if all(isinstance(part, torch.nn.Linear) for part in parts):
                for name in ("weight", "bias"):
                    _place_together([part._parameters[name] for part in parts], device, placed)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                _place_together([parameter], device, placed)
                module._parameters[name] = placed[id(parameter)]


def _place_together(parts: list[Any], device: torch.device, placed: dict[int, Parameter]) -> None:
    """Make one tensor for the parameters, one below the other, unless they have their places."""
    if any(part is None or id(part) in placed for part in parts):
        return
    first = parts[0]
    rows = [len(part) for part in parts] if len(parts) > 1 else []
    shape = (sum(rows), *first.shape[1:]) if rows else first.shape
    whole = torch.empty(shape, dtype=first.dtype, device=device)
    places = whole.split(rows) if rows else (whole,)
    for part, place in zip(parts, places, strict=True):
        placed[id(part)] = Parameter(place, requires_grad=False)


def joined(parts: list[Tensor]) -> Tensor:
    """The tensors one below the other: the tensor that they are parts of, or else a copy."""
    first = parts[0]
    offset = first.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.storage_offset() != offset or not part.is_contiguous():
            return torch.cat(parts)
        offset += part.numel()
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return first.as_strided(shape, first.stride(), first.storage_offset())
