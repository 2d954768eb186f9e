"""Products of few rows: our kernel with its variants beside cuBLAS, against reading the weight.

`python -m bench.gpu.few_rows` measures an 8 B shape on a GPU. With `--dry` it runs tiny shapes on a
CPU in Triton's interpreter (3.8 or later), where only the errors mean anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear as cublas

from bench.gpu.clock import bandwidth
from bench.gpu.model import FULL, TINY, GpuScale, decoder
from engine.errors import first_line
from engine.kernels.dependent_launch import DependentLaunch, why_no_dependent_launch
from engine.model.cuda_graphs import CudaGraphs, Step
from engine.model.fused_weights import Linear
from engine.model.ops_cuda import TritonOps, processors
from engine.model.products.skinny import SkinnyProducts
from engine.model.products.skinny_tiles import SkinnyTiles, tiles_for
from engine.model.trials.device_timer import device_seconds

Tensor = torch.Tensor
Way = Callable[[Tensor, Linear], Tensor]
Row = dict[str, Any]

# Layers of a chain whose kernels follow each other.
_CHAIN = 8


@dataclass(frozen=True, slots=True)
class _Setup:
    """What all measurements share; `read` is the bandwidth in bytes a second."""

    scale: GpuScale
    device: torch.device
    read: float
    record: Callable[[Step], Step]
    ops: TritonOps

    def seconds(self, step: Step) -> float:
        """Median seconds of a recorded step."""
        return device_seconds(self.record(step), self.device, self.scale.repeats)


def run(device: torch.device, dry: bool) -> dict[str, list[Row]]:
    """Rows of the sections `products of few rows` and `chain of a layer`.

    A row has microseconds, the share of the bandwidth, the error relative to float64's norm,
    and whether the first row has the same bits alone (`same_alone`). A failure is a row, too.
    """
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is None:
        return {"products of few rows": [{"skipped": "triton is not installed"}]}
    scale = replace(TINY, batches=(20,), repeats=1, copy_bytes=2**16) if dry else FULL
    record = CudaGraphs(device) if device.type == "cuda" else lambda step: step
    with torch.inference_mode():
        read = max(bandwidth(scale, device).values())
        ops = TritonOps(decoder(replace(scale, layers=1), device))
        setup = _Setup(scale, device, read, record, ops)
        products = [row for name in _shapes(scale) for row in _product(setup, name)]
        return {"products of few rows": products, "chain of a layer": list(_chains(setup))}


def rows(device: torch.device, dry: bool) -> Iterator[Row]:
    """The same rows one after the other, each with the name of its part."""
    for part, found in run(device, dry).items():
        yield from ({"part": part} | row for row in found)


def _shapes(scale: GpuScale) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's products."""
    heads = (scale.heads + 2 * scale.kv_heads) * scale.size
    return {
        "qkv": (heads, scale.hidden),
        "out": (scale.hidden, scale.heads * scale.size),
        "gate_up": (2 * scale.inner, scale.hidden),
        "gate_up, gated": (2 * scale.inner, scale.hidden),
        "down": (scale.hidden, scale.inner),
    }


def _product(setup: _Setup, name: str) -> Iterator[Row]:
    scale, device = setup.scale, setup.device
    shape, gated = _shapes(scale)[name], name.endswith("gated")
    # Together several times a cache.
    count = max(2, scale.copy_bytes // 8 // (math.prod(shape) * scale.dtype.itemsize))
    weights = [
        Linear(torch.randn(shape, device=device).mul_(0.02).to(scale.dtype)) for _ in range(count)
    ]
    for batch in scale.batches:
        x = torch.randn(batch, shape[1], device=device).to(scale.dtype)
        expected = _exact(x, weights[0], gated)
        for way, apply in _ways(setup, shape, gated):
            where = {"linear": name, "rows": batch, "way": way}
            try:
                yield where | _measured(setup, apply, x, weights, expected)
            except Exception as error:  # too much shared memory, for example
                yield where | {"error": first_line(error)[:200]}


def _measured(setup: _Setup, apply: Way, x: Tensor, weights: list[Linear], expected: Tensor) -> Row:
    answer = apply(x, weights[0])
    off = ((answer.double() - expected).norm() / expected.norm()).item()
    same = torch.equal(apply(x[:1].clone(), weights[0]), answer[:1])
    taken = setup.seconds(lambda: [apply(x, one) for one in weights][-1]) / len(weights)
    floor = weights[0].weight.nbytes / setup.read
    return {"us": taken * 1e6, "of_floor": floor / taken, "off": off, "same_alone": same}


def _exact(x: Tensor, weights: Linear, gated: bool) -> Tensor:
    answer = x.double() @ weights.weight.double().T
    if not gated:
        return answer
    gate, up = answer.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def _ways(setup: _Setup, shape: tuple[int, int], gated: bool) -> Iterator[tuple[str, Way]]:
    """cuBLAS, our kernel as chosen with and without dependent launch, and other tiles."""

    def theirs(x: Tensor, weights: Linear) -> Tensor:
        answer = cublas(x, weights.weight)
        return setup.ops.gate(answer) if gated else answer

    yield "cuBLAS", theirs
    chosen = _chosen(setup, shape, gated)
    yield "ours", _ours(setup, chosen, gated, False)
    if why_no_dependent_launch(setup.device) is None:
        yield "ours, dependent launch", _ours(setup, chosen, gated, True)
    for tiles in _variants(chosen, setup.device, gated):
        yield str(tiles), _ours(setup, tiles, gated, False)


def _chosen(setup: _Setup, shape: tuple[int, int], gated: bool) -> SkinnyTiles:
    outputs = shape[0] // 2 if gated else shape[0]
    return tiles_for(
        outputs, shape[1], setup.scale.dtype.itemsize, processors(setup.device), gated=gated
    )


def _variants(chosen: SkinnyTiles, device: torch.device, gated: bool) -> Iterator[SkinnyTiles]:
    """Other tiles; without a GPU those alone that change the order of additions."""
    yield replace(chosen, depth=2 * chosen.depth, stages=3)
    if not gated:
        yield replace(chosen, splits=2 * chosen.splits)
    if device.type == "cpu":
        return
    yield replace(chosen, stages=chosen.stages - 1)
    yield replace(chosen, stages=chosen.stages + 2)
    yield replace(chosen, warps=8)
    if not gated:
        yield replace(chosen, splits=max(1, chosen.splits // 2))
        yield replace(chosen, outputs=chosen.outputs // 2)


def _ours(setup: _Setup, tiles: SkinnyTiles, gated: bool, dependent: bool) -> Way:
    launch = DependentLaunch(dependent)
    skinny = SkinnyProducts(processors(setup.device), launch, tiles)
    if gated:
        return lambda x, weights: skinny.gated(x, weights, gelu=False)
    return lambda x, weights: skinny.product(x, weights)


def _chains(setup: _Setup) -> Iterator[Row]:
    """Norm, gated product, product and sum, layer after layer, with one launch behind the other."""
    scale, device = setup.scale, setup.device
    model = decoder(replace(scale, layers=min(_CHAIN, scale.layers)), device)
    mlp = sum(one.gate_up.weight.nbytes + one.down.weight.nbytes for one in model.layers)
    floor = mlp / len(model.layers) / setup.read
    plain, ours = TritonOps(model), TritonOps(model)
    # Of two equal times ours is taken: our kernels for all rows.
    ours.choose_kernels(lambda run: 0.0)
    early = why_no_dependent_launch(device) is None
    ways = [("cuBLAS", plain, False), ("ours", ours, False)]
    ways += [("ours, dependent launch", ours, True)] if early else []
    for way, ops, dependent in ways:
        ops.dependent.on = dependent
        for batch in scale.batches:
            start = torch.randn(batch, scale.hidden, device=device).to(scale.dtype)
            taken = setup.seconds(partial(ops.mlp_chain, start)) / len(model.layers)
            yield {"way": way, "rows": batch, "us": taken * 1e6, "of_floor": floor / taken}


def main() -> None:
    """Print every row."""
    parser = argparse.ArgumentParser(prog="bench.gpu.few_rows", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.dry else "cuda")
    for section, found in run(device, options.dry).items():
        print(section)
        for row in found:
            print(" ", json.dumps(row))


if __name__ == "__main__":
    main()
