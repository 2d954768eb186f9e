"""How checkpoints store the experts of a layer: one by one, stacked, or stacked as MXFP4.

A module of `transformers` has them stacked. Mixtral and Qwen3-MoE store each expert's weights by
themselves; gpt-oss stores stacks, in its own release as MXFP4 (Open Compute Project, Microscaling
Formats 1.0): 32 numbers of 4 bits share a power of two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from engine.weights.stored_tensors import StoredTensor, TensorReader

Tensor = torch.Tensor
Index = tuple[int | slice, ...]

_STACKED = re.compile(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)")
_ROUTER = re.compile(r"(.*)\.mlp\.gate\.weight")
# The names of the experts of a layer, and those of an expert's gate, up and down.
_ONE_BY_ONE = (
    ("{}.block_sparse_moe.experts.{}.{}.weight", ("w1", "w3", "w2")),
    ("{}.mlp.experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")),
)
# The numbers that 4 bits stand for: a sign, two bits of exponent and one of mantissa.
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a parameter that is stored as a tensor of its own; `index` () is all of it."""

    stored: StoredTensor
    index: Index = ()


@dataclass(frozen=True, slots=True)
class StoredMxfp4:
    """A stack [experts, in, out] that is stored transposed, as MXFP4.

    `blocks` [experts, out, in / 32, 16] has two numbers a byte, `scales` [experts, out, in / 32].
    """

    blocks: StoredTensor
    scales: StoredTensor

    def read(self, reader: TensorReader, target: Tensor) -> None:
        """Fill the parameter, expert by expert."""
        for expert, place in enumerate(target):
            blocks, scales = (
                torch.empty(one.shape[1:], dtype=torch.uint8, device=target.device)
                for one in (self.blocks, self.scales)
            )
            parts = (_of_expert(self.blocks, expert), _of_expert(self.scales, expert))
            reader.read(zip(parts, (blocks, scales), strict=True))
            place.copy_(from_mxfp4(blocks, scales).T)


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 blocks [rows, groups, 16] and scales [rows, groups] to float32 [rows, groups * 32].

    The low half of a byte comes first.
    """
    numbers = torch.tensor([*_FP4, *(-number for number in _FP4)], device=blocks.device)
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    powers = torch.exp2(scales.float() - _EXPONENT_BIAS)
    return (numbers[halves.int()] * powers.unsqueeze(-1)).flatten(1)


def stored_parts(
    name: str, shape: tuple[int, ...], stored: Mapping[str, StoredTensor]
) -> list[StoredPart] | StoredMxfp4 | None:
    """Where the parameter of a module is stored, if by another name or in parts; else None."""
    if match := _ROUTER.fullmatch(name):
        return _parts([(f"{match[1]}.block_sparse_moe.gate.weight", ())], shape, stored)
    match = _STACKED.fullmatch(name)
    if match is None or len(shape) != 3:
        return None
    blocks, scales = (stored.get(f"{name}_{kind}") for kind in ("blocks", "scales"))
    if blocks is not None and scales is not None:
        return _mxfp4(blocks, scales, shape)
    layer, is_down = match[1], match[2] == "down_proj"
    half = shape[1] // 2
    for form, (gate, up, down) in _ONE_BY_ONE:
        places: list[tuple[str, tuple[slice, ...]]] = [(down, ())]
        if not is_down:
            places = [(gate, (slice(0, half),)), (up, (slice(half, None),))]
        named: list[tuple[str, Index]] = [
            (form.format(layer, expert, one), (expert, *place))
            for expert in range(shape[0])
            for one, place in places
        ]
        if found := _parts(named, shape, stored):
            return found
    return None


def _parts(
    named: list[tuple[str, Index]],
    shape: tuple[int, ...],
    stored: Mapping[str, StoredTensor],
) -> list[StoredPart] | None:
    like = torch.empty(shape, device="meta")
    if any(n not in stored or stored[n].shape != tuple(like[at].shape) for n, at in named):
        return None
    return [StoredPart(stored[n], at) for n, at in named]


def _mxfp4(
    blocks: StoredTensor, scales: StoredTensor, shape: tuple[int, ...]
) -> StoredMxfp4 | None:
    experts, inputs, outputs = shape
    fits = blocks.shape == (*scales.shape, 16) and scales.shape == (experts, outputs, inputs // 32)
    return StoredMxfp4(blocks, scales) if fits and inputs % 32 == 0 else None


def _of_expert(stored: StoredTensor, expert: int) -> StoredTensor:
    """The expert's part of a stacked tensor."""
    shape = stored.shape[1:]
    offset = stored.offset + expert * prod(shape) * stored.dtype.itemsize
    return replace(stored, shape=shape, offset=offset)
