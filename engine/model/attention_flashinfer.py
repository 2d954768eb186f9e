"""FlashInfer's attention to blocks, behind the same interface as Triton's.

It has not run on a GPU. A test checks its calls, with a stand-in for the library.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from engine.errors import Internal
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

# Scratch memory of FlashInfer's kernels; the size is its documentation's. A bound.
_WORKSPACE_BYTES = 128 * 2**20


class FlashInferAttention:
    """FlashInfer's paged attention for all spans; its plan is made once per batch and window."""

    name = "FlashInfer attention (unverified)"

    def __init__(self, device: torch.device, workspace_bytes: int = _WORKSPACE_BYTES) -> None:
        self._library: Any = importlib.import_module("flashinfer")
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        self._planned: tuple[PackedBatch, dict[int | None, Any]] | None = None

    def __call__(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See PagedAttention; without sinks."""
        if sinks is not None:
            raise Internal("FlashInfer's attention is called without sinks")
        if self._planned is None or self._planned[0] is not batch:
            self._planned = batch, {}
        plans = self._planned[1]
        if window not in plans:
            plans[window] = self._plan(query, store, batch, scaling, window, softcap)
        out: Tensor = plans[window].run(query, (store[0], store[1]))
        return out

    def _plan(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Any:
        size, kv_heads = store.shape[2:4]
        keys = batch.firsts + batch.starts.diff()
        pages = (keys + size - 1) // size
        column = torch.arange(batch.tables.shape[1], device=keys.device)
        wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        wrapper.plan(
            batch.starts,
            torch.nn.functional.pad(pages.cumsum(0), (1, 0)).int(),
            batch.tables[column < pages[:, None]],
            keys - (pages - 1) * size,
            query.shape[1],
            kv_heads,
            query.shape[2],
            size,
            causal=True,
            sm_scale=scaling,
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=softcap,
            q_data_type=query.dtype,
            kv_data_type=store.dtype,
        )
        return wrapper
