"""A decoder of random weights made in place on the device, and requests for it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.fused_weights import Decoder, Layer, Linear, Rotary
from engine.model.packed_batch import PackedBatch, pack
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class GpuScale:
    """A Llama shape and the sizes of its measurements; `matrix` and `copy_bytes` are for limits."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    dtype: torch.dtype
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    chunk: int
    matrix: int
    copy_bytes: int
    repeats: int

    @property
    def size(self) -> int:
        """Dims of a head."""
        return self.hidden // self.heads

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' products; norms are too few to count."""
        attention = self.hidden * self.size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    def step_bytes(self, batch: int, context: int) -> int:
        """Bytes that a decode step must read: all weights, and the batch's keys and values."""
        weights = self.layer_weights + self.hidden * self.vocabulary
        return (weights + self.layers * self.kv_numbers(batch, context)) * self.dtype.itemsize

    def kv_numbers(self, batch: int, context: int) -> int:
        """Keys and values of one layer."""
        return 2 * batch * context * self.kv_heads * self.size

    def attention_flops(self, prompt: int) -> int:
        """Causal attention of one layer over a prompt: two products, half of the square."""
        return 2 * self.heads * self.size * prompt * prompt


# Llama 3 8B, in bfloat16.
FULL = GpuScale(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    inner=14336,
    vocabulary=128256,
    dtype=torch.bfloat16,
    contexts=(1024, 8192),
    batches=(1, 8, 32, 64),
    prompts=(2048, 8192),
    chunk=2048,
    matrix=8192,
    copy_bytes=4 * 2**30,
    repeats=20,
)
TINY = GpuScale(
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    inner=96,
    vocabulary=100,
    dtype=torch.float32,
    contexts=(16, 40),
    batches=(1, 3),
    prompts=(20, 40),
    chunk=20,
    matrix=64,
    copy_bytes=2**20,
    repeats=2,
)
BLOCK = 16


def decoder(scale: GpuScale, device: torch.device) -> Decoder:
    """Random weights, small enough that activations stay finite."""

    def weights(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=scale.dtype, device=device).mul_(0.02)

    hidden, size = scale.hidden, scale.size
    positions = torch.arange(max(*scale.contexts, *scale.prompts), device=device)
    angles = positions[:, None] * 500000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    rotary = Rotary(angles.cos(), angles.sin())
    layers = tuple(
        Layer(
            input_norm=weights(hidden) + 1,
            mlp_norm=weights(hidden) + 1,
            qkv=Linear(weights((scale.heads + 2 * scale.kv_heads) * size, hidden)),
            out=Linear(weights(hidden, scale.heads * size)),
            gate_up=Linear(weights(2 * scale.inner, hidden)),
            down=Linear(weights(hidden, scale.inner)),
            rotary=rotary,
            window=None,
        )
        for _ in range(scale.layers)
    )
    return Decoder(
        embedding=weights(scale.vocabulary, hidden),
        embedding_scale=1.0,
        layers=layers,
        final_norm=weights(hidden) + 1,
        head=Linear(weights(scale.vocabulary, hidden)),
        heads=scale.heads,
        kv_heads=scale.kv_heads,
        head_size=size,
        eps=1e-5,
        norm_offset=0.0,
        scaling=size**-0.5,
        softcap=None,
        final_softcap=None,
        gelu=False,
    )


def cache(scale: GpuScale, device: torch.device) -> KvCache:
    """A cache for the largest batch at the longest context, filled with random numbers."""
    shape = LayerShape(scale.kv_heads, scale.size)
    dtype = str(scale.dtype).removeprefix("torch.")
    layout = KvLayout((shape,) * scale.layers, BLOCK, dtype, "random")
    most = max(max(scale.batches) * max(scale.contexts), max(scale.prompts))
    made = KvCache(layout, layout.blocks_for(most) + max(scale.batches), device)
    for layer in made.layers:
        layer.normal_()
    return made


def spans(batch: int, context: int, queries: int, store: KvCache) -> list[Span]:
    """The last `queries` tokens of sequences of that context, over scattered blocks."""
    blocks = random.Random(0).sample(range(store.blocks), store.blocks)
    needed = store.layout.blocks_for(context)
    made = []
    for number in range(batch):
        new = Sequence(str(number), [number % 7] * context, context, SamplingParams())
        new.blocks = blocks[number * needed : (number + 1) * needed]
        made.append(Span(new, context - queries, queries))
    return made


def packed(batch: int, context: int, queries: int, store: KvCache) -> PackedBatch:
    """The spans of `spans` as a packed batch."""
    return pack(spans(batch, context, queries, store), store)
