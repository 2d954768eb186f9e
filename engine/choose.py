"""Which forward serves a model here, and why: the compact one where it can, else the module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine import kernels
from engine.compact import CompactRunner
from engine.compact_weights import FAMILIES, Decoder, read
from engine.config import ModelConfig
from engine.errors import UnsupportedModel
from engine.layout import KvLayout
from engine.model import ModelDescription
from engine.ops_cpu import CpuOps, why_not
from engine.ops_torch import TorchOps
from engine.runner import Runner, TransformersRunner


def choose_runner(
    description: ModelDescription, model: Any, layout: KvLayout, config: ModelConfig
) -> tuple[Runner, KvLayout]:
    """The runner, and the layout in which it keeps KV. The compact one empties the module.

    What is asked for and cannot be had is refused, not replaced: replicas must agree.
    """
    forward = config.forward
    known = description.architecture in FAMILIES
    if forward == "compact" and not known:
        raise UnsupportedModel(f"{description.architecture} has no compact forward")
    if forward == "transformers" or not known:
        return TransformersRunner(model), layout
    decoder = read(model, description.context_tokens)
    if config.operations == "torch":
        return CompactRunner(decoder, TorchOps(decoder)), layout
    reason = _why_not_cpu(decoder, layout)
    if reason is not None:
        raise UnsupportedModel(f"model.operations: cpp: {reason}")
    return CompactRunner(decoder, CpuOps(decoder)), replace(layout, format="pairs")


def _why_not_cpu(decoder: Decoder, layout: KvLayout) -> str | None:
    """Why the C++ operations cannot serve, or None; builds them where they can."""
    if decoder.embedding.device.type != "cpu":
        return f"the weights are on {decoder.embedding.device.type}"
    if decoder.embedding.dtype != torch.bfloat16:
        return f"the C++ operations are for bfloat16, the weights are {layout.dtype}"
    return why_not(decoder, layout.block_size) or kernels.why_not_built()
