"""Decode through static, padded buffers gives what the eager step gives, and touches no more."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.cuda_graphs import BUCKETS, DecodeReplays, buckets_for
from engine.model.fused_forward import CompactRunner
from engine.model.ops_torch import TorchOps
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.kinds import Kind, decoder

BLOCK, CONTEXT, POOL = 4, 48, 60
WIDTH = CONTEXT // BLOCK


def _step_as_it_is(step):
    """On a CPU a recording is the function itself, over the same buffers; it runs once before."""
    step()
    return step


def _runner():
    model = decoder(window=7)
    model = replace(model, layers=(model.layers[0], replace(model.layers[0], window=None)))
    model = Kind("torch", TorchOps, "cpu", torch.float32).there(model)
    return CompactRunner(model, TorchOps(model))


def _cache(seed):
    layout = KvLayout((LayerShape(2, 32), LayerShape(2, 32)), BLOCK, "float32", "x")
    cache = KvCache(layout, POOL, torch.device("cpu"))
    for layer in cache.layers:
        layer.normal_(generator=torch.Generator().manual_seed(seed))
    return cache


def _replays(runner, cache, record=_step_as_it_is, buckets=(1, 2, 4, 8)):
    replays = DecodeReplays(lambda b: whole(runner.layers(b)), cache, WIDTH, record, buckets)
    for _ in replays.pieces():
        pass
    return replays


def _sequences(lengths, seed):
    rng = random.Random(seed)
    blocks = rng.sample(range(POOL), POOL)
    for number, length in enumerate(lengths):
        new = Sequence(str(number), [], length, SamplingParams())
        new.tokens = [rng.randrange(10) for _ in range(length)]
        needed = -(-length // BLOCK)
        new.blocks, blocks = blocks[:needed], blocks[needed:]
        yield new


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(
        st.lists(st.integers(1, CONTEXT), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    seed=st.integers(0, 9),
)
def test_a_padded_step_is_the_eager_step(steps, seed):
    """Batches one after another: what an earlier one left in the buffers changes nothing."""
    runner, cache, plain = _runner(), _cache(seed), _cache(seed)
    replays = _replays(runner, cache)
    for number, lengths in enumerate(steps):
        spans = [Span(s, len(s.tokens) - 1, 1) for s in _sequences(lengths, seed + number)]
        expected = whole(runner.layers(pack(spans, plain)))
        got = replays.logits(spans)
        # One rounding apart: a product of other height may add up in another order.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-5)
        for mine, theirs in zip(cache.layers, plain.layers, strict=True):
            torch.testing.assert_close(mine[:, :-1], theirs[:, :-1], rtol=1e-5, atol=2e-5)


def test_padding_writes_to_the_scratch_block_alone():
    runner, cache = _runner(), _cache(3)
    before = [layer.clone() for layer in cache.layers]
    replays = _replays(runner, cache)
    for layer, old in zip(cache.layers, before, strict=True):
        assert torch.equal(layer[:, :-1], old[:, :-1])
        assert not torch.equal(layer[:, cache.scratch], old[:, cache.scratch])
    sequence = next(_sequences([10], 1))
    spans = [Span(sequence, 9, 1)] + [Span(s, 0, 1) for s in _sequences([1, 1], 2)]
    assert replays.logits(spans).shape == (3, 10)
    written = {s.sequence.blocks[s.start // BLOCK] * BLOCK + s.start % BLOCK for s in spans}
    for layer, old in zip(cache.layers, before, strict=True):
        changed = (layer != old)[:, :-1].flatten(1, 2).any(-1).any(-1).any(0)
        assert set(changed.nonzero().flatten().tolist()) == written


def test_the_scratch_block_is_not_in_the_pool():
    cache = _cache(0)
    assert cache.scratch == cache.blocks == POOL
    assert cache.layers[0].shape[1] == POOL + 1


def test_a_step_without_a_recording_runs_eagerly(caplog):
    def record(step):
        if step.args == (2,):
            raise RuntimeError("no memory\nat all")
        return step

    runner, cache = _runner(), _cache(0)
    caplog.set_level(logging.INFO, logger="engine.model.cuda_graphs")
    replays = _replays(runner, cache, record)
    assert "decode of 2 stays eager: no memory" in caplog.messages
    singles = [Span(s, len(s.tokens) - 1, 1) for s in _sequences([3] * 9, 0)]
    assert replays.logits(singles[:1]) is not None
    assert replays.logits(singles[:2]) is None
    assert replays.logits(singles[:3]) is not None
    assert replays.logits(singles) is None, "more than the largest size"
    chunk = next(_sequences([20], 0))
    assert replays.logits([Span(chunk, 5, 15)]) is None, "a chunk"
    assert replays.logits([Span(chunk, 5, 1)]) is None, "a token that samples nothing"
    chunk.blocks = list(range(WIDTH + 1))
    assert replays.logits([Span(chunk, 19, 1)]) is None, "blocks beyond the context"


def test_a_size_is_not_recorded_before_its_piece():
    runner, cache = _runner(), _cache(0)
    replays = DecodeReplays(
        lambda b: whole(runner.layers(b)), cache, WIDTH, _step_as_it_is, (1, 2, 4)
    )
    pieces = replays.pieces()
    spans = [Span(s, 2, 1) for s in _sequences([3, 3, 3], 0)]
    assert replays.logits(spans) is None
    next(pieces)
    assert replays.logits(spans) is not None
    assert replays.logits(spans[:2]) is None


@pytest.mark.parametrize("rows", range(1, BUCKETS[-1] + 1))
def test_padding_is_bounded(rows):
    bucket = min(b for b in BUCKETS if b >= rows)
    assert bucket - rows <= max(rows // 2, 7 if rows > 8 else 3)


@pytest.mark.parametrize(("rows", "last"), [(1, 1), (64, 64), (65, 96), (256, 256), (999, 256)])
def test_sizes_are_recorded_up_to_the_largest_batch(rows, last):
    assert buckets_for(rows) == BUCKETS[: BUCKETS.index(last) + 1]
