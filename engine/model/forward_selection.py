"""Chooses the forward of a model: the compact forward if possible, else the module."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from engine import kernels
from engine.config import KvDtype, ModelConfig, OperationsName
from engine.errors import UnsupportedModel
from engine.fp8.values import has_fp8
from engine.kv.cache import KvCache
from engine.memory.device_memory import DeviceMemory
from engine.memory.recordings import recordings_bytes
from engine.model import fused_phi as compact_phi
from engine.model.cuda_graphs import MOST_ROWS, CudaGraphs, DecodeReplays, buckets_for
from engine.model.experts.module_experts import FAMILIES_WITH_EXPERTS
from engine.model.experts.module_experts import why_not as why_not_experts
from engine.model.fused_forward import CompactRunner
from engine.model.fused_weights import FAMILIES, Decoder, read
from engine.model.layers_cpu import CpuLayers, why_not
from engine.model.ops_cuda import TritonOps, attention_named
from engine.model.ops_cuda import why_not as why_not_triton
from engine.model.ops_torch import TorchOps
from engine.model.runner import Runner, TransformersRunner, whole
from engine.model.warm_up import compute_longest, compute_once, kinds_of_batches
from engine.model_description import ModelDescription

log = logging.getLogger(__name__)


class Improvement(Protocol):
    """A change that makes steps faster, and takes long to prepare."""

    @property
    def stalls(self) -> bool:
        """Whether a piece would stall streams. The change must then end before there are any."""
        ...

    def reserve(self, cache: KvCache, memory: DeviceMemory) -> Mapping[str, int]:
        """Bytes that it will take of the device, by what takes them, found by a trial.

        The trial computes over a small cache, and leaves nothing.
        """
        ...

    def prepare(self) -> str | None:
        """Do the slow part, on any thread; the reason if it cannot be done, else None."""
        ...

    def pieces(self, cache: KvCache) -> Iterator[None]:
        """Swap the change in, piece by piece; steps or layers of a step may come between two."""
        ...

    def steps(self, *, draws: bool) -> int:
        """How many pieces there are, with `draws` from recorded logits or without."""
        ...


@dataclass(frozen=True, slots=True)
class CpuOperations:
    """The C++ operations, for a runner that began with torch's."""

    runner: CompactRunner
    decoder: Decoder
    stalls: ClassVar[bool] = False

    def reserve(self, cache: KvCache, memory: DeviceMemory) -> Mapping[str, int]:
        """See Improvement: nothing, as packing a layer frees its plain weights."""
        return {}

    def prepare(self) -> str | None:
        """See Improvement: half a minute of compiling."""
        return kernels.why_not_loaded()

    def pieces(self, cache: KvCache) -> Iterator[None]:
        """See Improvement: a layer a piece."""
        return self.runner.take(CpuLayers(self.decoder), cache)

    def steps(self, *, draws: bool) -> int:
        """See Improvement."""
        return len(self.decoder.layers)


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """Compiled kernels for contexts of that many tokens, where steps cannot be recorded."""

    runner: CompactRunner
    context_tokens: int
    stalls: ClassVar[bool] = True

    @torch.inference_mode()
    def reserve(self, cache: KvCache, memory: DeviceMemory) -> Mapping[str, int]:
        """See Improvement: computes a long prompt."""
        prompt = memory.peak_of(lambda: compute_longest(self.runner, cache, self.context_tokens))
        return {"a long prompt": prompt}

    def prepare(self) -> str | None:
        """See Improvement: nothing to do before."""
        return None

    def pieces(self, cache: KvCache) -> Iterator[None]:
        """See Improvement: a kind of prompt a piece."""
        return compute_once(self.runner, cache, self.context_tokens)

    def steps(self, *, draws: bool) -> int:
        """See Improvement."""
        return len(kinds_of_batches(self.context_tokens))


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """Decode steps as CUDA graphs, and compiled kernels, for contexts of that many tokens.

    Steps of up to `most_rows` sequences are recorded.
    """

    runner: CompactRunner
    context_tokens: int
    most_rows: int
    stalls: ClassVar[bool] = True

    @torch.inference_mode()
    def reserve(self, cache: KvCache, memory: DeviceMemory) -> Mapping[str, int]:
        """See Improvement: computes a long prompt, and records the largest and smallest step."""
        prompt = memory.peak_of(lambda: compute_longest(self.runner, cache, self.context_tokens))
        buckets = buckets_for(self.most_rows)
        ends = (buckets[0], buckets[-1])
        trial = recordings_bytes(self._replays(cache, ends).pieces(), len(buckets), memory)
        return {"a long prompt": prompt, "recorded steps": trial}

    def prepare(self) -> str | None:
        """See Improvement: nothing to do before."""
        return None

    def pieces(self, cache: KvCache) -> Iterator[None]:
        """See Improvement: a kind of prompt or a batch size a piece."""
        yield from compute_once(self.runner, cache, self.context_tokens)
        self.runner.replays = self._replays(cache, buckets_for(self.most_rows))
        yield from self.runner.replays.pieces()

    def steps(self, *, draws: bool) -> int:
        """See Improvement."""
        recordings = len(buckets_for(self.most_rows)) * (2 if draws else 1)
        return len(kinds_of_batches(self.context_tokens)) + recordings

    def _replays(self, cache: KvCache, buckets: tuple[int, ...]) -> DecodeReplays:
        runner, width = self.runner, cache.layout.blocks_for(self.context_tokens)
        return DecodeReplays(
            lambda batch: whole(runner.layers(batch)),
            cache,
            width,
            CudaGraphs(cache.device),
            buckets,
        )


def choose_runner(
    description: ModelDescription,
    model: Any,
    block_size: int,
    kv_dtype: KvDtype,
    config: ModelConfig,
    most_rows: int = MOST_ROWS,
) -> tuple[Runner, Improvement | None]:
    """The runner, and the change that will make it faster. The compact runner empties the module.

    Steps of up to `most_rows` sequences are recorded where the device can.
    UnsupportedModel where the configuration names a forward or operations that cannot be used.
    """
    reason = _why_not_compact(description, model)
    if config.forward == "compact" and reason is not None:
        raise UnsupportedModel(f"{description.architecture} has no compact forward: {reason}")
    if reason is not None:
        log.info("the module's own forward: %s: %s", description.architecture, reason)
    if config.forward == "transformers" or reason is not None:
        return TransformersRunner(model), None
    if description.architecture == compact_phi.FAMILY:
        if config.operations not in ("auto", "torch"):
            raise UnsupportedModel(f"model.operations: {config.operations}: not for Phi's layers")
        decoder = compact_phi.read(model, description.context_tokens)
        return CompactRunner(decoder, compact_phi.PhiOps(decoder)), None
    decoder = read(model, description.context_tokens)
    if config.operations == "torch":
        return CompactRunner(decoder, TorchOps(decoder)), None
    if decoder.embedding.is_cuda or config.operations in ("triton", "flashinfer"):
        if config.operations == "flashinfer" and kv_dtype != "auto":
            raise UnsupportedModel(f"model.operations: flashinfer: not with kv.dtype: {kv_dtype}")
        context_tokens = description.context_tokens
        return _choose_on_cuda(decoder, context_tokens, config.operations, most_rows, kv_dtype)
    reason = _why_not_cpu(decoder, block_size, kv_dtype)
    wanted = config.operations == "cpp"
    if reason is None and (wanted or kernels.is_built()):
        reason = kernels.why_not_loaded()
        if reason is None:
            return CompactRunner(decoder, CpuLayers(decoder)), None
    if reason is not None and wanted:
        raise UnsupportedModel(f"model.operations: cpp: {reason}")
    runner = CompactRunner(decoder, TorchOps(decoder))
    if reason is not None:
        log.info("torch operations: %s", reason)
        return runner, None
    return runner, CpuOperations(runner, decoder)


def _why_not_compact(description: ModelDescription, model: Any) -> str | None:
    """Why the compact forward cannot serve the model, or None."""
    if description.architecture == compact_phi.FAMILY:
        return compact_phi.why_not(model.config)
    if description.architecture in FAMILIES_WITH_EXPERTS:
        return why_not_experts(model.config, model)
    return None if description.architecture in FAMILIES else "its layers are not known"


def _choose_on_cuda(
    decoder: Decoder,
    context_tokens: int,
    operations: OperationsName,
    most_rows: int,
    kv_dtype: KvDtype,
) -> tuple[Runner, Improvement | None]:
    """Triton's operations where they can be used, else torch's, unless others are configured."""
    weights = decoder.embedding
    reason = why_not_triton(decoder) if weights.is_cuda else f"the weights are on {weights.device}"
    if kv_dtype != "auto" and weights.is_cuda and not has_fp8(weights.device):
        reason = f"kv.dtype: {kv_dtype}: the device has no FP8"
    if operations == "cpp":
        reason = f"the weights are on {weights.device}"
    if reason is None:
        ops = TritonOps(decoder, attention_named(operations, decoder))
        ops.choose_kernels()
        runner = CompactRunner(decoder, ops)
        if ops.not_recorded is None:
            return runner, RecordedSteps(runner, context_tokens, most_rows)
        log.info("steps are not recorded: %s", ops.not_recorded)
        return runner, CompiledKernels(runner, context_tokens)
    if operations != "auto":
        raise UnsupportedModel(f"model.operations: {operations}: {reason}")
    log.info("torch operations: %s", reason)
    return CompactRunner(decoder, TorchOps(decoder)), None


def _why_not_cpu(decoder: Decoder, block_size: int, kv_dtype: KvDtype) -> str | None:
    """Why the C++ operations cannot serve the model, or None."""
    weights = decoder.embedding
    if weights.device.type != "cpu":
        return f"the weights are on {weights.device.type}"
    if kv_dtype != "auto":
        return f"the C++ operations keep KV in bfloat16, not in {kv_dtype}"
    if weights.dtype != torch.bfloat16:
        return f"the C++ operations are for bfloat16, the weights are {weights.dtype}"
    return why_not(decoder, block_size)
