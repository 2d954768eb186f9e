"""The common part of all measurements of one GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.gpu.clock import GpuReport
from bench.gpu.model import GpuScale
from engine.kv.cache import KvCache
from engine.model.cuda_graphs import CudaGraphs, Step
from engine.model.fused_forward import CompactRunner
from engine.model.fused_weights import Decoder
from engine.model.layers_op_by_op import OpByOp


@dataclass(frozen=True, slots=True)
class GpuBench:
    """The common part of all measurements; `read` and `rate` are the limits, per second."""

    scale: GpuScale
    device: torch.device
    decoder: Decoder
    runner: CompactRunner
    ops: OpByOp
    cache: KvCache
    report: GpuReport
    read: float
    rate: float

    def recorder(self) -> Callable[[Step], Step]:
        """A recorder of CUDA graphs; without a GPU it returns steps unchanged."""
        return CudaGraphs(self.device) if self.device.type == "cuda" else lambda step: step
