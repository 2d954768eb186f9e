"""The number of KV blocks of a replica, once its weights are on the device."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from engine.config import KvConfig
from engine.free_memory import free_bytes
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout
from engine.kv.memory import block_bytes
from engine.memory.budget import MemoryBudget
from engine.memory.device_memory import CudaMemory, release_unused
from engine.model.forward_selection import Improvement
from engine.model.runner import Runner

log = logging.getLogger(__name__)


def reserved_bytes(
    runner: Runner, improvement: Improvement | None, layout: KvLayout, device: torch.device
) -> dict[str, int]:
    """What steps will take of a GPU's memory beside weights and KV; nothing for other devices.

    UNVERIFIED on a GPU: the trial has run in tests alone, with a stand-in for the device.
    """
    if improvement is None or device.type != "cuda":
        return {}
    cache = KvCache(layout, 1, device, runner.kv_format)
    return dict(improvement.reserve(cache, CudaMemory(device)))


def pool_blocks(
    layout: KvLayout,
    device: torch.device,
    kv: KvConfig,
    most_tokens: int,
    share: int,
    reserved: Mapping[str, int],
) -> int:
    """The blocks in a replica's share of the free memory, at most those for `most_tokens`.

    ConfigError with the numbers where not a single block fits.
    """
    on_cpu = device.type == "cpu"
    release_unused(device)
    fraction = kv.memory_fraction or (0.5 if on_cpu else 0.9)
    budget = MemoryBudget(free_bytes(device), fraction, share, {} if on_cpu else reserved)
    blocks = budget.blocks(block_bytes(layout), layout.blocks_for(most_tokens))
    log.info("KV pool of %d blocks: %s", blocks, budget)
    return blocks
