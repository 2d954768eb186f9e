"""FlashInfer's attention to blocks, behind the same interface as Triton's.

It has not run on a GPU. A test checks its calls, with a stand-in for the library. It plans each
batch on the host, so decode steps, which are recorded, stay with Triton's.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from engine.errors import Internal
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.attention_triton import TritonAttention
from engine.model.fused_weights import Decoder
from engine.model.packed_batch import PackedBatch, pack
from engine.model.trials.device_timer import Timer
from engine.model.trials.kernel_trial import KernelTrial, TrialCase
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

Tensor = torch.Tensor

# The prompt that both are measured on.
_TOKENS = 2048
_BLOCK = 16
# In bfloat16. Whether FlashInfer's runs have equal bits is not known.
_TRIAL = KernelTrial("attention of prompts", "FlashInfer", "Triton", 2e-2, runs=1)

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


class PromptAttention:
    """Triton's attention, and FlashInfer's for batches with prompts once `choose` found it faster.

    See PagedAttention.
    """

    def __init__(self, triton: TritonAttention, flashinfer: FlashInferAttention) -> None:
        self._triton = triton
        self._flashinfer = flashinfer
        self.name = triton.name
        self.wins = False

    def __call__(self, query: Tensor, store: Tensor, batch: PackedBatch, **how: Any) -> Tensor:
        """See PagedAttention."""
        if self.wins and batch.segments[-1].queries > 1:
            return self._flashinfer(query, store, batch, **how)
        return self._triton(query, store, batch, **how)

    def choose(self, decoder: Decoder, seconds: Timer) -> None:
        """Try both on a prompt of 2,048 tokens; any failure leaves Triton's."""
        device, dtype = decoder.embedding.device, decoder.embedding.dtype
        shape = LayerShape(decoder.kv_heads, decoder.head_size)
        layout = KvLayout((shape,), _BLOCK, str(dtype).removeprefix("torch."), "trial")
        cache = KvCache(layout, layout.blocks_for(_TOKENS), device)
        prompt = Sequence("trial", [0] * _TOKENS, _TOKENS, SamplingParams())
        prompt.blocks = list(range(cache.blocks))
        batch = pack([Span(prompt, 0, _TOKENS)], cache)
        store = cache.layers[0].normal_()
        query = torch.randn(_TOKENS, decoder.heads, decoder.head_size).to(device, dtype)
        how: dict[str, Any] = {
            "scaling": decoder.scaling,
            "window": None,
            "softcap": decoder.softcap,
        }
        case = TrialCase(
            f"{_TOKENS} tokens",
            partial(self._flashinfer, query, store, batch, **how),
            partial(self._triton, query, store, batch, **how),
        )
        self.wins = _TRIAL.cases_won([case], seconds) == 1
        if self.wins:
            self.name += f", {self._flashinfer.name} for prompts"
