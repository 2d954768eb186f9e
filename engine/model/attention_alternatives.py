"""Other ways to attend to blocks, behind the same interface, to be measured against Triton's.

On an H200 torch's varlen was slower (docs/performance.md); FlashInfer has not run on a GPU. Tests
check what they hand over, with stand-ins for the libraries.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from engine.model.attention_triton import TritonAttention
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

_WORKSPACE_BYTES = 128 * 2**20


class VarlenPrefill(TritonAttention):
    """Longer spans by torch's varlen attention over keys gathered from their blocks.

    It knows no block tables; a copy of the keys costs little beside a prompt's products. It cannot
    cap scores: where a model does, Triton's kernel stays.
    """

    name = "Triton attention, torch's varlen for prompts"
    _keys: tuple[PackedBatch, Tensor, Tensor, int] | None = None

    def _prefill(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        single: int,
        longest: int,
        scale: float,
        shape: dict[str, int | float],
        out: Tensor,
    ) -> None:
        """See TritonAttention."""
        if shape["CAP"]:
            super()._prefill(query, store, batch, single, longest, scale, shape, out)
            return
        from torch.nn.attention.varlen import varlen_attn

        slots, ends, most = self._gathered(batch, single)
        rows = store.flatten(1, 2)
        starts = batch.starts[single:] - single
        window = int(shape["WINDOW"]) - 1 if shape["WINDOW"] else -1
        key, value = rows[0][slots], rows[1][slots]
        if key.shape[1] != query.shape[1]:
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        answer = varlen_attn(
            query[single:],
            key,
            value,
            starts,
            ends,
            longest,
            most,
            scale=scale * _LN2,
            window_size=(window, 0),
        )
        assert isinstance(answer, Tensor)
        out[single:] = answer

    def _gathered(self, batch: PackedBatch, single: int) -> tuple[Tensor, Tensor, int]:
        """Where the keys of the longer spans lie, one span after another; made once per batch."""
        if self._keys is None or self._keys[0] is not batch:
            size = batch.cache.layout.block_size
            counts = batch.starts[single:].diff() + batch.firsts[single:]
            lengths = counts.tolist()
            place = [torch.arange(n, device=counts.device) for n in lengths]
            slots = [
                table[at // size].long() * size + at % size
                for table, at in zip(batch.tables[single:], place, strict=True)
            ]
            ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
            self._keys = batch, torch.cat(slots), ends, max(lengths)
        return self._keys[1:]


class FlashInferAttention:
    """FlashInfer's paged attention for all spans; its plan is made once per batch and window."""

    name = "FlashInfer attention (unverified)"

    def __init__(self, device: torch.device) -> None:
        self._library: Any = importlib.import_module("flashinfer")
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
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
    ) -> Tensor:
        """See PagedAttention."""
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


_LN2 = 0.6931471805599453
