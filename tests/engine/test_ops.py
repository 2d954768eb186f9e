"""The layer operations: one suite for all kinds, against float64."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace

import pytest
import torch

from engine import kernels
from engine.batch import pack
from engine.kv_cache import KvCache
from engine.layout import KvLayout, LayerShape
from engine.ops_cpu import CpuOps, why_not
from engine.ops_cuda import why_not as why_not_triton
from engine.sampling import SamplingParams
from engine.sequence import Sequence, Span
from tests.engine.kinds import (
    BLOCK,
    BLOCKS,
    MAKERS,
    Kind,
    decoder,
    why_no_cpp,
    why_no_triton,
    without_avx512,
)

KINDS = [
    ("torch", "bfloat16"),
    ("torch", "float32"),
    ("C++", "bfloat16"),
    ("C++ without AVX-512", "bfloat16"),
    ("Triton", "bfloat16"),
    ("Triton", "float32"),
    ("Triton, split", "float32"),
]
if torch.cuda.is_available():  # The interpreter takes seconds for each.
    KINDS += [
        ("torch on CUDA", "bfloat16"),
        ("torch on CUDA", "float32"),
        ("Triton", "float16"),
        ("Triton, split", "bfloat16"),
    ]


@pytest.fixture(params=KINDS, ids=", ".join)
def kind(request):
    torch.manual_seed(3)
    name, dtype = request.param
    reason, device = None, "cpu"
    if name.startswith("C++"):
        reason = why_no_cpp(kernels.NATIVE if name == "C++" else kernels.AVX2)
    elif name == "torch on CUDA":
        name, device = "torch", "cuda"
        reason = None if torch.cuda.is_available() else "no CUDA device here"
    elif name.startswith("Triton"):
        reason = why_no_triton()
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if reason is not None:
        pytest.skip(reason)
    return Kind(MAKERS[name], device, getattr(torch, dtype))


def rms(x, weight, model):
    x = x.double()
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.eps)
    return x * scale * (weight.double() + model.norm_offset)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 7, 70])
def test_norms(kind, rows, offset):
    model = decoder(offset=offset)
    ops, weight = kind.ops(model), kind.there(model.final_norm)
    x, branch = torch.randn(2, rows, 64).bfloat16()
    kind.close(ops.norm(kind.there(x.clone()), weight), rms(x, model.final_norm, model))
    total, normed = ops.add_norm(kind.there(x.clone()), kind.there(branch), weight)
    kind.close(total, x.double() + branch.double())
    kind.close(normed, rms(x.double() + branch.double(), model.final_norm, model))


@pytest.mark.parametrize("gelu", [False, True])
def test_gate(kind, gelu):
    gate_up = torch.randn(9, 192).mul_(3).bfloat16()
    gate, up = gate_up.double().chunk(2, dim=-1)
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else gate * gate.sigmoid()
    got = kind.ops(decoder(gelu=gelu)).gate(kind.there(gate_up))
    kind.close(got, act * up)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_linear(kind, rows):
    model = decoder()
    for linear in (model.layers[0].down, model.layers[0].qkv):
        x = torch.randn(rows, linear.weight.shape[1]).bfloat16()
        expected = x.double() @ linear.weight.double().T
        if linear.bias is not None:
            expected += linear.bias.double()
        # `prepare` may give the weight up: it gets one of its own.
        apply = kind.ops(model).prepare(replace(kind.there(linear)))
        kind.close(apply(kind.there(x)), expected)


SHAPES = {
    "grouped": {},
    "multi-head": {"heads": 4, "kv_heads": 4},
    "multi-query": {"heads": 20, "kv_heads": 1},
    "normed": {"normed": True},
    "normed, offset": {"normed": True, "offset": 1.0},
    "window": {"window": 40},
    "capped": {"softcap": 2.0},
    "part of a head turns": {"size": 96, "turning": 64, "normed": True},
    "heads of 64": {"heads": 4, "size": 64},
    "heads of 80": {"heads": 2, "kv_heads": 1, "size": 80},
    "heads of 128": {"heads": 2, "kv_heads": 1, "size": 128},
    "heads of 256": {"heads": 2, "kv_heads": 1, "size": 256, "window": 60},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_over_scattered_blocks(kind, shape):
    """Chunks and single tokens in one batch, step after step, against attention over the whole."""
    model = decoder(**SHAPES[shape])
    if kind.make in (CpuOps, without_avx512) and (reason := why_not(model, BLOCK)):
        pytest.skip(reason)
    ops, layer = kind.ops(model), kind.there(model.layers[0])
    dtype = str(kind.dtype).removeprefix("torch.")
    layout = KvLayout((LayerShape(model.kv_heads, model.head_size),), BLOCK, dtype, "x")
    cache = KvCache(layout, BLOCKS, torch.device(kind.device))
    width = (model.heads + 2 * model.kv_heads) * model.head_size
    rows = [torch.randn(length, width).bfloat16() for length in (1, 18, 90)]
    got = [[] for _ in rows]
    for spans in _steps([len(qkv) for qkv in rows]):
        batch = pack(spans, cache)
        packed = [spans[index] for index in batch.order]
        parts = [rows[int(s.sequence.owner)][s.start : s.start + s.count] for s in packed]
        out = ops.attend(kind.there(torch.cat(parts)), layer, cache.layers[0], batch)
        for span, part in zip(packed, out.split([s.count for s in packed]), strict=True):
            got[int(span.sequence.owner)].append(part)
    for qkv, parts in zip(rows, got, strict=True):
        kind.close(torch.cat(parts), _attention(qkv, model.layers[0], model))


def _steps(lengths):
    """Steps that compute sequences of these lengths over scattered blocks, in chunks and singly.

    The last token of each comes alone, so that a single query meets a long context.
    """
    rng = random.Random(1)
    blocks = rng.sample(range(BLOCKS), BLOCKS)
    running = []
    for number, length in enumerate(lengths):
        new = Sequence(str(number), [0] * length, length, SamplingParams())
        needed = -(-length // BLOCK)
        new.blocks, blocks = blocks[:needed], blocks[needed:]
        running.append(new)
    while running:
        sizes = [rng.choice((1, 30, 64)) if s.remaining > 1 else 1 for s in running]
        spans = [
            Span(s, s.computed, min(n, s.remaining)) for s, n in zip(running, sizes, strict=True)
        ]
        yield spans
        for span in spans:
            span.sequence.computed += span.count
        running = [s for s in running if s.remaining]


def _attention(qkv, layer, model):
    """The whole sequence at once, in float64: [tokens, heads * head_size]."""
    heads, kv_heads = model.heads, model.kv_heads
    split = qkv.double().view(len(qkv), -1, model.head_size).split([heads, kv_heads, kv_heads], 1)
    query, key, value = split
    if layer.query_norm is not None:
        query, key = rms(query, layer.query_norm, model), rms(key, layer.key_norm, model)
    query, key = (_turned(x, layer.rotary) for x in (query, key))
    key, value = (x.repeat_interleave(heads // kv_heads, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * model.scaling
    if model.softcap is not None:
        scores = torch.tanh(scores / model.softcap) * model.softcap
    row, column = torch.arange(len(qkv))[:, None], torch.arange(len(qkv))[None]
    hidden = column > row
    if layer.window is not None:
        hidden |= column <= row - layer.window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def _turned(x, rotary):
    cosine, sine = (t[: len(x), None].double() for t in (rotary.cosine, rotary.sine))
    half = cosine.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest], dim=-1)


def test_what_the_c_operations_cannot_do_is_said():
    assert why_not(decoder(), 16) is None
    assert "block size, 10" in why_not(decoder(), 10)
    assert "heads of 16" in why_not(decoder(size=16), 16)


def test_what_the_triton_operations_cannot_do_is_said():
    if importlib.util.find_spec("triton") is None:
        assert why_not_triton(decoder()) == "triton is not installed"
        return
    assert why_not_triton(decoder()) is None
    assert "heads of 512" in why_not_triton(decoder(size=512))
    assert "share" in why_not_triton(decoder(heads=65, kv_heads=1))
