"""A decoder layer in float64, and steps that compute sequences piece by piece."""

from __future__ import annotations

import random

import torch

from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.kinds import BLOCK, BLOCKS


def rms(x, weight, model):
    x = x.double()
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.eps)
    return x * scale * (weight.double() + model.norm_offset)


def steps(lengths):
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


def attention(qkv, layer, model, stored=lambda x: x):
    """The whole sequence at once, in float64: [tokens, heads * head_size].

    `stored` gives the keys and values as they are stored.
    """
    heads, kv_heads = model.heads, model.kv_heads
    split = qkv.double().view(len(qkv), -1, model.head_size).split([heads, kv_heads, kv_heads], 1)
    query, key, value = split
    if layer.query_norm is not None:
        query, key = rms(query, layer.query_norm, model), rms(key, layer.key_norm, model)
    query, key = (turned(x, layer.rotary) for x in (query, key))
    key, value = (stored(x).repeat_interleave(heads // kv_heads, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * model.scaling
    if model.softcap is not None:
        scores = torch.tanh(scores / model.softcap) * model.softcap
    row, column = torch.arange(len(qkv))[:, None], torch.arange(len(qkv))[None]
    hidden = column > row
    if layer.window is not None:
        hidden |= column <= row - layer.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.double()[:, None, None].expand(-1, len(qkv), 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1)[..., : len(qkv)]
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def turned(x, rotary):
    cosine, sine = (t[: len(x), None].double() for t in (rotary.cosine, rotary.sine))
    half = cosine.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest], dim=-1)


def layer_stream(x, layer, model):
    """The residual stream of a whole sequence behind one layer, in float64."""
    hidden = rms(x, layer.input_norm, model)
    branch = linear(attention(linear(hidden, layer.qkv), layer, model), layer.out)
    x = x + normed(branch, layer.post_attention, model)
    gate, up = linear(rms(x, layer.mlp_norm, model), layer.gate_up).chunk(2, dim=-1)
    branch = linear(activated(gate, model) * up, layer.down)
    return x + normed(branch, layer.post_mlp, model)


def linear(x, weights):
    out = x.double() @ weights.weight.double().T
    return out if weights.bias is None else out + weights.bias.double()


def normed(x, weight, model):
    return x if weight is None else rms(x, weight, model)


def activated(gate, model):
    if model.gelu:
        return torch.nn.functional.gelu(gate, approximate="tanh")
    return gate * gate.sigmoid()
