"""The operations of a layer: one suite for all kinds, against float64."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.experts.routing import ClampedGate
from engine.model.ops_cuda import why_not as why_not_triton
from engine.model.packed_batch import pack
from tests.engine.kinds import BLOCK, BLOCKS, OPERATIONS, SHAPES, decoder, kind_named
from tests.engine.reference import attention, rms, steps
from tests.fp8_models import E4M3


@pytest.fixture(params=OPERATIONS, ids=", ".join)
def kind(request):
    return kind_named(*request.param)


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


@pytest.mark.parametrize("biased", [False, True])
def test_clamped_gate(kind, biased):
    gate_up, bias = torch.randn(9, 192).mul_(4).bfloat16(), torch.randn(5, 192).bfloat16()
    experts = torch.randint(5, (9,))
    wide = gate_up.double() + (bias[experts].double() if biased else 0.0)
    gate, up = wide[:, ::2].clamp(max=3.0), wide[:, 1::2].clamp(-3.0, 3.0)
    got = kind.ops(decoder()).clamped_gate(
        kind.there(gate_up),
        kind.there(bias) if biased else None,
        kind.there(experts),
        ClampedGate(1.5, 3.0),
    )
    kind.close(got, gate * (1.5 * gate).sigmoid() * (up + 1))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_linear(kind, rows):
    model = decoder()
    for linear in (model.layers[0].down, model.layers[0].qkv):
        x = torch.randn(rows, linear.weight.shape[1]).bfloat16()
        expected = x.double() @ linear.weight.double().T
        if linear.bias is not None:
            expected += linear.bias.double()
        # `apply` may give the weight up: it gets one of its own.
        apply = kind.ops(model).apply(replace(kind.there(linear)))
        kind.close(apply(kind.there(x)), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_over_scattered_blocks(kind, shape):
    """Chunks and single tokens in one batch, step after step, against attention over the whole."""
    model = decoder(**SHAPES[shape])
    rows, got, _ = attended(kind, model, str(kind.dtype).removeprefix("torch."))
    for qkv, parts in zip(rows, got, strict=True):
        kind.close(torch.cat(parts), attention(qkv, model.layers[0], model))


@pytest.mark.parametrize("shape", ["grouped", "window", "heads of 80"])
def test_attention_over_blocks_in_fp8(kind, shape):
    """Against the same attention over rounded keys and values; some are rounded the other way."""
    model = decoder(**SHAPES[shape])
    rows, got, cache = attended(kind, model, "fp8_e4m3")
    assert cache.layers[0].dtype == E4M3
    for qkv, parts in zip(rows, got, strict=True):
        expected = attention(qkv, model.layers[0], model, lambda x: x.to(E4M3).to(x.dtype))
        error = (torch.cat(parts).cpu().double() - expected).abs()
        assert error.max() <= 0.15 * expected.abs().max()
        assert error.mean() <= (0.001 if kind.dtype == torch.float32 else 0.01)


def test_numbers_beyond_fp8_become_its_largest_and_nans_stay(kind):
    model = decoder()
    ops, layer = kind.ops(model), kind.there(model.layers[0])
    layout = KvLayout((LayerShape(model.kv_heads, model.head_size),), BLOCK, "fp8_e4m3", "x")
    cache = KvCache(layout, BLOCKS, torch.device(kind.device))
    spans = next(steps([1]))
    qkv = torch.ones(1, (model.heads + 2 * model.kv_heads) * model.head_size).bfloat16()
    qkv[0, -3:] = torch.tensor([1000.0, -1e30, float("nan")])
    ops.attend(kind.there(qkv), layer, cache.layers[0], pack(spans, cache))
    place = divmod(int(pack(spans, cache).slots[0]), BLOCK)
    stored = cache.layers[0].float()[1, place[0], place[1], -1, -4:]
    assert stored[:3].tolist() == [1.0, 448.0, -448.0] and stored[3].isnan()


def attended(kind, model, dtype):
    """Three sequences, what was attended of each in parts, and the cache of its KV."""
    ops, layer = kind.ops(model), kind.there(model.layers[0])
    layout = KvLayout((LayerShape(model.kv_heads, model.head_size),), BLOCK, dtype, "x")
    cache = KvCache(layout, BLOCKS, torch.device(kind.device))
    width = (model.heads + 2 * model.kv_heads) * model.head_size
    rows = [torch.randn(length, width).bfloat16() for length in (1, 18, 90)]
    got = [[] for _ in rows]
    for spans in steps([len(qkv) for qkv in rows]):
        batch = pack(spans, cache)
        packed = [spans[index] for index in batch.order]
        parts = [rows[int(s.sequence.owner)][s.start : s.start + s.count] for s in packed]
        out = ops.attend(kind.there(torch.cat(parts)), layer, cache.layers[0], batch)
        for span, part in zip(packed, out.split([s.count for s in packed]), strict=True):
            got[int(span.sequence.owner)].append(part)
    return rows, got, cache


def test_why_the_triton_operations_cannot_serve_a_model_is_reported():
    if importlib.util.find_spec("triton") is None:
        assert why_not_triton(decoder()) == "triton is not installed"
        return
    assert why_not_triton(decoder()) is None
    assert "heads of 512" in why_not_triton(decoder(size=512))
    assert "share" in why_not_triton(decoder(heads=65, kv_heads=1))
