"""A layer's operations between its matrix products, as Triton kernels that touch memory once."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.fp8_triton import saturated
from engine.kernels.paged_triton import tanh


@triton.jit
def add_rms_norm(
    branch, residual, weight, out, eps, offset, WIDTH: tl.constexpr, DIMS: tl.constexpr,
    ADDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Row by row: residual += branch where ADDS; out = residual / rms * (weight + offset)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    dims = tl.arange(0, DIMS)
    real = dims < WIDTH
    x = tl.load(residual + row + dims, mask=real, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(branch + row + dims, mask=real, other=0.0)).to(x.dtype)
        tl.store(residual + row + dims, x, real)
    wide = x.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    wide *= tl.load(weight + dims, mask=real, other=0.0).to(tl.float32) + offset
    tl.store(out + row + dims, wide.to(out.dtype.element_ty), real)


@triton.jit
def rope_store(
    qkv, cosine, sine, positions, slots, query_norm, key_norm, query, store, value_offset,
    eps, offset,
    HEADS: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, DIMS: tl.constexpr,
    HALF: tl.constexpr, TAKE: tl.constexpr, NORMED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Norm and rotate queries and keys; keys and values go to their slots, queries to `query`.

    Grid [tokens, heads / TAKE] over qkv [tokens, HEADS + 2 * KV, SIZE]; HALF is half of the dims
    that turn. `query` is [tokens, HEADS, SIZE].
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TAKE + tl.arange(0, TAKE)[:, None]
    dims = tl.arange(0, DIMS)[None, :]
    real = (head < HEADS + 2 * KV) & (dims < SIZE)
    turns = (head < HEADS + KV) & (dims < 2 * HALF)
    partner = tl.where(dims < HALF, dims + HALF, dims - HALF)

    source = qkv + (token * (HEADS + 2 * KV) + head) * SIZE
    x = tl.load(source + dims, mask=real, other=0.0).to(tl.float32)
    other = tl.load(source + partner, mask=real & turns, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)[:, None]
        of_query = (head < HEADS) & real
        of_key = (head >= HEADS) & (head < HEADS + KV) & real
        weight = tl.load(query_norm + dims + head * 0, mask=of_query, other=0.0).to(tl.float32)
        weight += tl.load(key_norm + dims + head * 0, mask=of_key, other=0.0).to(tl.float32)
        mirror = tl.load(query_norm + partner + head * 0, mask=of_query & turns, other=0.0)
        mirrored = tl.load(key_norm + partner + head * 0, mask=of_key & turns, other=0.0)
        x = tl.where(head < HEADS + KV, x * scale * (weight + offset), x)
        other *= scale * (mirror.to(tl.float32) + mirrored.to(tl.float32) + offset)

    angle = tl.load(positions + token) * HALF + tl.where(dims < HALF, dims, dims - HALF)
    cos = tl.load(cosine + angle, mask=dims < 2 * HALF, other=1.0)
    sin = tl.load(sine + angle, mask=dims < 2 * HALF, other=0.0)
    turned = x * cos + tl.where(dims < HALF, -other, other) * sin
    answer = tl.where(turns, turned, x)
    tl.store(query + (token * HEADS + head) * SIZE + dims, answer.to(query.dtype.element_ty),
             real & (head < HEADS))  # fmt: skip
    kv = head - HEADS
    place = store + (tl.load(slots + token) * KV + kv % KV) * SIZE + (kv // KV) * value_offset
    if store.dtype.element_ty.is_fp8():
        answer = saturated(answer)
    tl.store(place + dims, answer.to(store.dtype.element_ty), real & (kv >= 0))


@triton.jit
def gate(
    gate_up, out, WIDTH: tl.constexpr, DIMS: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr
):
    """act(gate) * up; grid [rows, WIDTH / DIMS] over gate_up [rows, 2 * WIDTH]."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    real = dims < WIDTH
    x = tl.load(gate_up + row * (2 * WIDTH) + dims, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + dims, mask=real, other=0.0)
    if GELU:
        x = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        x = x * tl.sigmoid(x)
    tl.store(out + row * WIDTH + dims, (x * up.to(tl.float32)).to(out.dtype.element_ty), real)


@triton.jit
def clamped_gate(
    gate_up, bias, experts, out, alpha, limit,
    WIDTH: tl.constexpr, DIMS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """gpt-oss: g * sigmoid(alpha * g) * (u + 1), bounded by `limit`; grid [rows, WIDTH / DIMS].

    `gate_up` [rows, WIDTH, 2] has g and u in turn, and so has `bias` [experts, WIDTH, 2], of which
    a row gets its expert's.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    real = dims < WIDTH
    source = gate_up + row * (2 * WIDTH) + 2 * dims
    gate = tl.load(source, mask=real, other=0.0).to(tl.float32)
    up = tl.load(source + 1, mask=real, other=0.0).to(tl.float32)
    if BIASED:
        added = bias + tl.load(experts + row) * (2 * WIDTH) + 2 * dims
        gate += tl.load(added, mask=real, other=0.0).to(tl.float32)
        up += tl.load(added + 1, mask=real, other=0.0).to(tl.float32)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    answer = (up + 1.0) * (gate * tl.sigmoid(gate * alpha))
    tl.store(out + row * WIDTH + dims, answer.to(out.dtype.element_ty), real)
