"""The operations of a layer on a CUDA device: fused Triton kernels, cuBLAS for the products."""

from __future__ import annotations

import importlib.util
import logging
from functools import partial

import torch

from engine.errors import UnsupportedModel
from engine.fp8.product import Fp8Products
from engine.kernels.dependent_launch import DependentLaunch, why_no_dependent_launch
from engine.model.attention_flashinfer import FlashInferAttention, PromptAttention
from engine.model.attention_triton import PagedAttention, TritonAttention, power_of_two
from engine.model.cuda_graphs import CudaGraphs
from engine.model.experts.grouped_product import why_not_recorded
from engine.model.experts.routing import ClampedGate
from engine.model.fused_weights import Decoder, Layer, Linear
from engine.model.layers_op_by_op import Apply, OpByOp
from engine.model.packed_batch import PackedBatch
from engine.model.products.dependent_choice import choose_dependent
from engine.model.products.few_rows import FewRows, FewRowsProduct
from engine.model.products.skinny import SkinnyProducts
from engine.model.trials.device_timer import ColdTimer, Timer

log = logging.getLogger(__name__)

Tensor = torch.Tensor

# Bounds of the kernels.
_MOST_HEAD_SIZE = 256
_MOST_GROUP = 64
_MOST_HIDDEN = 32768
# Tuned: dims that a program of the gate kernel computes.
_GATE_DIMS = 1024
# Layers of the chain of kernels that dependent launch is tried on.
_CHAIN = 8
# Tuned: from so many tokens on a program takes a whole tile of heads instead of a few.
_MANY_TOKENS = 256


def why_not(decoder: Decoder) -> str | None:
    """The reason if these operations cannot serve the model, else None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if decoder.head_size % 2 or decoder.head_size > _MOST_HEAD_SIZE:
        return f"heads of {decoder.head_size} are not supported"
    if decoder.heads // decoder.kv_heads > _MOST_GROUP:
        return f"more than {_MOST_GROUP} heads share a KV head"
    if decoder.embedding.shape[1] > _MOST_HIDDEN:
        return f"a hidden size above {_MOST_HIDDEN} is not supported"
    return None


class TritonOps(OpByOp):
    """See OpByOp. Rounds once where `transformers` may round twice.

    `attention` attends to blocks; without it Triton's own kernels do.
    """

    def __init__(self, decoder: Decoder, attention: PagedAttention | None = None) -> None:
        from engine.kernels import fused_triton

        super().__init__(decoder)
        device = decoder.embedding.device
        self._kernels = fused_triton
        self.dependent = DependentLaunch()
        self._fp8 = Fp8Products(by_triton=True)
        self._few_rows = FewRows(SkinnyProducts(processors(device), self.dependent))
        self._attention = attention or TritonAttention(processors(device))
        self.name = f"Triton operations, {self._attention.name}"
        self.not_recorded = self._why_not_recorded()

    def _why_not_recorded(self) -> str | None:
        """Why steps cannot be recorded, or None."""
        if not isinstance(self._attention, (TritonAttention, PromptAttention)):
            return f"{self._attention.name} plans each batch on the host"
        stacks = (one.gate_up.weight for one in self._decoder.layers if one.experts is not None)
        return next(filter(None, map(why_not_recorded, stacks)), None)

    def apply(self, weights: Linear) -> Apply:
        """The weights as they are."""
        if weights.scales is not None:
            dtype = self._decoder.embedding.dtype
            return self._fp8.of(weights.weight, weights.scales, weights.bias, dtype)
        return FewRowsProduct(self._few_rows, weights)

    def choose_kernels(self, seconds: Timer | None = None) -> None:
        """Measure our products and dependent launch; take them where they are right and faster.

        Until then products are cuBLAS's. Takes seconds, and must come before steps are recorded.
        """
        decoder, device = self._decoder, self._decoder.embedding.device
        timer = seconds or ColdTimer(device)
        with torch.inference_mode():
            for layer in decoder.layers:
                for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                    self._few_rows.choose(linear, timer)
                self._few_rows.choose_gated(layer.gate_up, self.gate, timer, gelu=decoder.gelu)
            self._few_rows.choose(decoder.head, timer)
            if isinstance(self._attention, PromptAttention):
                self._attention.choose(decoder, timer)
                self.name = f"Triton operations, {self._attention.name}"
            reason = why_no_dependent_launch(device)
            if reason is not None:
                log.info("no dependent launch: %s", reason)
                return
            row = decoder.embedding[:1]
            choose_dependent(
                self.dependent, partial(self.mlp_chain, row), CudaGraphs(device), timer
            )

    def mlp_chain(self, x: Tensor) -> Tensor:
        """Rows [rows, hidden] through the MLPs of a few layers, without attention: for measuring.

        Every kernel of the chain follows another one.
        """
        layers = self._decoder.layers[:_CHAIN]
        x = x.clone()
        hidden = self.norm(x, layers[0].mlp_norm)
        for layer in layers:
            branch = self.apply(layer.down)(self.gated(self.apply(layer.gate_up), hidden))
            x, hidden = self.add_norm(x, branch, layer.mlp_norm)
        return hidden

    def gated(self, gate_up: Apply, hidden: Tensor) -> Tensor:
        """See OpByOp; in the product's own kernel where that is faster."""
        if isinstance(gate_up, FewRowsProduct):
            out = self._few_rows.gated(hidden, gate_up.weights, gelu=self._decoder.gelu)
            if out is not None:
                return out
        return super().gated(gate_up, hidden)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See OpByOp."""
        return self._norm(x.contiguous(), None, weight)

    def add_norm(self, residual: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See OpByOp; adds in place."""
        return residual, self._norm(residual, branch, weight)

    def _norm(self, x: Tensor, branch: Tensor | None, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        width = x.shape[1]
        if len(x):
            self._kernels.add_rms_norm[(len(x),)](
                x if branch is None else branch,
                x,
                weight,
                out,
                self._decoder.eps,
                self._decoder.norm_offset,
                WIDTH=width,
                DIMS=power_of_two(width),
                ADDS=branch is not None,
                num_warps=min(16, max(1, power_of_two(width) // 512)),
                **self.dependent.options,
            )
        return out

    def attend(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """See OpByOp."""
        decoder = self._decoder
        query = self._rotated(qkv, layer, store, batch)
        out = self._attention(
            query,
            store,
            batch,
            scaling=decoder.scaling,
            window=layer.window,
            softcap=decoder.softcap,
            sinks=layer.sinks,
        )
        return out.flatten(1)

    def _rotated(self, qkv: Tensor, layer: Layer, store: Tensor, batch: PackedBatch) -> Tensor:
        """Keys and values into their blocks; the queries [tokens, heads, head_size]."""
        decoder = self._decoder
        tokens = len(qkv)
        query = qkv.new_empty(tokens, decoder.heads, decoder.head_size)
        normed = layer.query_norm is not None
        every = decoder.heads + 2 * decoder.kv_heads
        take = 16 if tokens >= _MANY_TOKENS else 2
        self._kernels.rope_store[(tokens, -(-every // take))](
            qkv,
            layer.rotary.cosine,
            layer.rotary.sine,
            batch.positions,
            batch.slots,
            layer.query_norm if normed else qkv,
            layer.key_norm if normed else qkv,
            query,
            store,
            store.stride(0),
            decoder.eps,
            decoder.norm_offset,
            HEADS=decoder.heads,
            KV=decoder.kv_heads,
            SIZE=decoder.head_size,
            DIMS=power_of_two(decoder.head_size),
            HALF=layer.rotary.cosine.shape[1],
            TAKE=take,
            NORMED=normed,
            num_warps=4 if take == 16 else 1,
            **self.dependent.options,
        )
        return query

    def gate(self, gate_up: Tensor) -> Tensor:
        """See OpByOp."""
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.gate[(rows, -(-width // _GATE_DIMS))](
            gate_up,
            out,
            WIDTH=width,
            DIMS=_GATE_DIMS,
            GELU=self._decoder.gelu,
            num_warps=4,
            **self.dependent.options,
        )
        return out

    def clamped_gate(
        self, gate_up: Tensor, bias: Tensor | None, experts: Tensor, gate: ClampedGate
    ) -> Tensor:
        """See OpByOp."""
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        self._kernels.clamped_gate[(rows, -(-width // _GATE_DIMS))](
            gate_up,
            gate_up if bias is None else bias,
            experts,
            out,
            gate.alpha,
            gate.limit,
            WIDTH=width,
            DIMS=_GATE_DIMS,
            BIASED=bias is not None,
            num_warps=4,
        )
        return out


def attention_named(operations: str, decoder: Decoder) -> PagedAttention | None:
    """The attention that `model.operations` names; None for Triton's own."""
    if operations != "flashinfer":
        return None
    if any(layer.sinks is not None for layer in decoder.layers):
        raise UnsupportedModel("model.operations: flashinfer: not for attention sinks")
    if importlib.util.find_spec("flashinfer") is None:
        raise UnsupportedModel("model.operations: flashinfer: it is not installed")
    device = decoder.embedding.device
    return PromptAttention(TritonAttention(processors(device)), FlashInferAttention(device))


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; 1 where there is none, as in the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
