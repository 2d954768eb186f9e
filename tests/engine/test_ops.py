"""The layer operations: one suite for both kinds, against float64."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from engine import kernels
from engine.batch import pack
from engine.compact_weights import Decoder, Layer, Linear, Rotary
from engine.kv_cache import KvCache
from engine.layout import KvLayout, LayerShape
from engine.ops_cpu import CpuOps, why_not
from engine.ops_torch import TorchOps
from engine.sampling import SamplingParams
from engine.sequence import Sequence, Span

BLOCK, BLOCKS, POSITIONS = 16, 80, 400


def decoder(*, heads=6, kv_heads=2, size=32, normed=False, offset=0.0, **options):
    """A one-layer model of random bfloat16 weights, small but with every part."""
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        return torch.randn(shape, generator=generator).mul_(0.3).bfloat16()

    hidden, inner = 64, 96
    angles = torch.arange(POSITIONS)[:, None] * 0.9 ** torch.arange(size // 2)[None]
    norm = weights(size) if normed else None
    layer = Layer(
        input_norm=weights(hidden),
        mlp_norm=weights(hidden),
        qkv=Linear(weights((heads + 2 * kv_heads) * size, hidden)),
        out=Linear(weights(hidden, heads * size)),
        gate_up=Linear(weights(2 * inner, hidden)),
        down=Linear(weights(hidden, inner), weights(hidden)),
        rotary=Rotary(torch.cos(angles).float(), torch.sin(angles).float()),
        window=options.get("window"),
        query_norm=norm,
        key_norm=norm,
    )
    return Decoder(
        embedding=weights(10, hidden),
        embedding_scale=1.0,
        layers=(layer,),
        final_norm=weights(hidden),
        head=Linear(weights(10, hidden)),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        eps=1e-5,
        norm_offset=offset,
        scaling=size**-0.5,
        softcap=options.get("softcap"),
        final_softcap=None,
        gelu=options.get("gelu", False),
    )


@pytest.fixture(params=["torch", "C++", "C++ without AVX-512"])
def make_ops(request):
    if request.param == "torch":
        return TorchOps
    build = kernels.NATIVE if request.param == "C++" else kernels.AVX2
    if "avx2" not in kernels.processor() and build is kernels.AVX2:
        pytest.skip("not an x86 processor")
    reason = kernels.why_not_loaded(build)
    if reason is not None:
        pytest.skip(reason)
    return partial(CpuOps, build=build)


def close(got, expected):
    """Within bfloat16's rounding of the float64 answer."""
    torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.04)


def rms(x, weight, model):
    x = x.double()
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.eps)
    return x * scale * (weight.double() + model.norm_offset)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 7, 70])
def test_norms(make_ops, rows, offset):
    model = decoder(offset=offset)
    ops, weight = make_ops(model), model.final_norm
    x, branch = torch.randn(2, rows, 64).bfloat16()
    close(ops.norm(x.clone(), weight), rms(x, weight, model))
    total, normed = ops.add_norm(x.clone(), branch, weight)
    close(total, x.double() + branch.double())
    close(normed, rms(x + branch, weight, model))


@pytest.mark.parametrize("gelu", [False, True])
def test_gate(make_ops, gelu):
    gate_up = torch.randn(9, 192).mul_(3).bfloat16()
    gate, up = gate_up.double().chunk(2, dim=-1)
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else gate * gate.sigmoid()
    got = make_ops(decoder(gelu=gelu)).gate(gate_up)
    torch.testing.assert_close(got.double(), act * up, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_linear(make_ops, rows):
    model = decoder()
    for linear in (model.layers[0].down, model.layers[0].qkv):
        weight = linear.weight
        x = torch.randn(rows, weight.shape[1]).bfloat16()
        expected = x.double() @ weight.double().T
        if linear.bias is not None:
            expected += linear.bias.double()
        close(make_ops(model).prepare(linear)(x), expected)


SHAPES = {
    "grouped": {},
    "multi-head": {"heads": 4, "kv_heads": 4},
    "multi-query": {"heads": 12, "kv_heads": 1},
    "normed": {"normed": True},
    "normed, offset": {"normed": True, "offset": 1.0},
    "window": {"window": 40},
    "large heads": {"heads": 2, "kv_heads": 1, "size": 128},
    "many heads on one": {"heads": 20, "kv_heads": 1},
    "capped scores": {"softcap": 2.0},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_over_scattered_blocks(make_ops, shape):
    """Chunks and single tokens in one batch, step after step, against attention over the whole."""
    model = decoder(**SHAPES[shape])
    layer = model.layers[0]
    ops = make_ops(model)
    layout = KvLayout((LayerShape(model.kv_heads, model.head_size),), BLOCK, "bfloat16", "x")
    cache = KvCache(layout, BLOCKS, torch.device("cpu"))
    rng = random.Random(1)
    blocks = rng.sample(range(BLOCKS), BLOCKS)
    width = (model.heads + 2 * model.kv_heads) * model.head_size
    rows = [torch.randn(length, width).bfloat16() for length in (1, 15, 33, 150, 300)]
    sequences = [
        Sequence(str(i), [0] * len(qkv), len(qkv), SamplingParams()) for i, qkv in enumerate(rows)
    ]
    for sequence in sequences:
        needed = layout.blocks_for(len(sequence.tokens))
        sequence.blocks, blocks = blocks[:needed], blocks[needed:]
    got = [[] for _ in rows]
    while running := [s for s in sequences if s.remaining]:
        spans = [Span(s, s.computed, min(rng.choice((1, 2, 40)), s.remaining)) for s in running]
        batch = pack(spans, cache)
        packed = [spans[index] for index in batch.order]
        parts = [rows[int(s.sequence.owner)][s.start : s.start + s.count] for s in packed]
        out = ops.attend(torch.cat(parts), layer, cache.layers[0], batch)
        for span, part in zip(packed, out.split([s.count for s in packed]), strict=True):
            got[int(span.sequence.owner)].append(part)
            span.sequence.computed += span.count
    for qkv, parts in zip(rows, got, strict=True):
        close(torch.cat(parts), _attention(qkv, layer, model))


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
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def test_what_the_c_operations_cannot_do_is_said():
    assert why_not(decoder(), 16) is None
    assert "block size, 10" in why_not(decoder(), 10)
    assert "heads of 16" in why_not(decoder(size=16), 16)
