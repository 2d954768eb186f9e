"""The kinds of layer operations, and a small model to try them on."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
import torch

from engine import kernels
from engine.model.attention_triton import TritonAttention
from engine.model.fused_weights import Decoder, Layer, Linear, Rotary
from engine.model.layers_cpu import CpuLayers
from engine.model.ops_cuda import TritonOps
from engine.model.ops_torch import TorchOps

BLOCK, BLOCKS, POSITIONS = 16, 80, 400


def decoder(
    *,
    heads=6,
    kv_heads=2,
    size=32,
    normed=False,
    window=None,
    offset=0.0,
    gelu=False,
    softcap=None,
    turning=None,
    layers=1,
    posts=False,
    biased=False,
    inner=96,
    sinks=False,
):
    """A model of random bfloat16 weights, small but with every part."""
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        return torch.randn(shape, generator=generator).mul_(0.3).bfloat16()

    hidden = 64
    angles = torch.arange(POSITIONS)[:, None] * 0.9 ** torch.arange((turning or size) // 2)[None]

    def linear(outputs, inputs, bias=biased):
        return Linear(weights(outputs, inputs), weights(outputs) if bias else None)

    def layer():
        norm = weights(size) if normed else None
        return Layer(
            input_norm=weights(hidden),
            mlp_norm=weights(hidden),
            qkv=linear((heads + 2 * kv_heads) * size, hidden),
            out=linear(hidden, heads * size),
            gate_up=linear(2 * inner, hidden),
            down=linear(hidden, inner, bias=True),
            rotary=Rotary(torch.cos(angles).float(), torch.sin(angles).float()),
            window=window,
            query_norm=norm,
            key_norm=None if norm is None else norm.flip(0),
            post_attention=weights(hidden) if posts else None,
            post_mlp=weights(hidden) if posts else None,
            sinks=weights(heads) * 4 if sinks else None,
        )

    return Decoder(
        embedding=weights(10, hidden),
        embedding_scale=1.0,
        layers=tuple(layer() for _ in range(layers)),
        final_norm=weights(hidden),
        head=linear(10, hidden),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        eps=1e-5,
        norm_offset=offset,
        scaling=size**-0.5,
        softcap=softcap,
        final_softcap=None,
        gelu=gelu,
    )


SHAPES = {
    "grouped": {},
    "multi-head": {"heads": 4, "kv_heads": 4},
    "multi-query": {"heads": 20, "kv_heads": 1},
    "normed": {"normed": True},
    "normed, offset": {"normed": True, "offset": 1.0},
    "window": {"window": 40},
    "capped": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "sinks, window, capped": {"sinks": True, "window": 40, "softcap": 2.0},
    "part of a head turns": {"size": 96, "turning": 64, "normed": True},
    "heads of 64": {"heads": 4, "size": 64},
    "heads of 80": {"heads": 2, "kv_heads": 1, "size": 80},
    "heads of 128": {"heads": 2, "kv_heads": 1, "size": 128},
    "heads of 256": {"heads": 2, "kv_heads": 1, "size": 256, "window": 60},
}


@dataclass(frozen=True)
class Kind:
    """One kind of operations, where they run and in what precision."""

    name: str
    make: Any
    device: str
    dtype: torch.dtype

    def ops(self, model):
        return self.make(self.there(model))

    def there(self, value):
        """The same on this kind's device in its precision; rotary tables stay float32."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device, self.dtype if value.is_floating_point() else None)
        if isinstance(value, Rotary):
            return Rotary(value.cosine.to(self.device), value.sine.to(self.device))
        if isinstance(value, tuple):
            return tuple(map(self.there, value))
        if isinstance(value, (Decoder, Layer, Linear)):
            parts = {f.name: self.there(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **parts)
        return value

    def randn(self, *shape):
        """The same random numbers for every kind, in its precision."""
        return self.there(torch.randn(*shape).bfloat16())

    def close(self, got, expected):
        """Within the precision's rounding of the float64 answer (on the CPU)."""
        narrow = self.dtype != torch.float32
        rtol, atol = (0.02, 0.04) if narrow else (1e-5, 2e-5)
        torch.testing.assert_close(got.cpu().double(), expected, rtol=rtol, atol=atol)


def split_triton(model):
    return TritonOps(model, TritonAttention(1, parts=8))


BUILDS = {
    "C++": kernels.NATIVE,
    "C++ without AVX-512": kernels.AVX2,
    "C++ without AVX2": kernels.PLAIN,
    "C++, products of pairs": kernels.PAIRS,
    "C++, products of float32": kernels.WIDENED,
}


def why_no_cpp(build):
    needed = {kernels.AVX2: "avx2", kernels.PLAIN: "sse4_2"}
    if build in needed and needed[build] not in kernels.processor():
        return "not an x86 processor that has it"
    if build in (kernels.PAIRS, kernels.WIDENED) and "avx512_bf16" not in kernels.processor():
        return "there is one kind of products on this processor"
    return kernels.why_not_loaded(build)


def why_no_triton():
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "no CUDA device, and TRITON_INTERPRET is not 1"
    return None


MAKERS = {
    "torch": TorchOps,
    **{name: partial(CpuLayers, build=build) for name, build in BUILDS.items()},
    "Triton": TritonOps,
    "Triton, split": split_triton,
}
OPERATIONS = [
    ("torch", "bfloat16"),
    ("torch", "float32"),
    ("Triton", "bfloat16"),
    ("Triton", "float32"),
    ("Triton, split", "float32"),
]
if torch.cuda.is_available():  # The interpreter takes seconds for each.
    OPERATIONS += [
        ("torch on CUDA", "bfloat16"),
        ("torch on CUDA", "float32"),
        ("Triton", "float16"),
        ("Triton, split", "bfloat16"),
    ]
LAYERS = [*OPERATIONS, *((name, "bfloat16") for name in BUILDS)]


def kind_named(name, dtype):
    """The kind, or the test is skipped; random numbers are the same from here on."""
    torch.manual_seed(3)
    reason, device = None, "cpu"
    if name in BUILDS:
        reason = why_no_cpp(BUILDS[name])
    elif name == "torch on CUDA":
        name, device = "torch", "cuda"
        reason = None if torch.cuda.is_available() else "no CUDA device here"
    elif name.startswith("Triton"):
        reason = why_no_triton()
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if reason is not None:
        pytest.skip(reason)
    return Kind(name, MAKERS[name], device, getattr(torch, dtype))
