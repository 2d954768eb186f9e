"""Blocks in and out of a cache: any layers, any blocks, in the order in which they travel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape

BLOCKS = 12
shapes = st.sampled_from([LayerShape(2, 8), LayerShape(1, 4)])
layouts = st.builds(
    KvLayout,
    layers=st.lists(shapes, min_size=1, max_size=6).map(tuple),
    block_size=st.just(4),
    dtype=st.sampled_from(["float32", "bfloat16", "fp8_e4m3"]),
    model_identity=st.just("m"),
)


def filled(layout):
    cache = KvCache(layout, BLOCKS, torch.device("cpu"))
    for layer in cache.layers:
        layer.copy_(torch.randn(layer.shape))
    return cache


@given(st.data(), layouts)
def test_blocks_travel_layer_by_layer_and_arrive_where_they_should(data, layout):
    source, target = filled(layout), KvCache(layout, BLOCKS, torch.device("cpu"))
    start = data.draw(st.integers(0, len(layout.layers) - 1))
    stop = data.draw(st.integers(start + 1, len(layout.layers)))
    some = st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=5, unique=True)
    blocks = data.draw(some)
    written = data.draw(st.permutations(range(BLOCKS)))[: len(blocks)]
    wire = torch.empty(len(blocks) * source.block_bytes(start, stop), dtype=torch.uint8)
    source.gather(blocks, start, stop, wire)
    every = [source.layers[number].view(torch.uint8) for number in range(start, stop)]
    assert torch.equal(wire, torch.cat([layer[:, blocks].flatten() for layer in every]))
    target.scatter(written, start, stop, wire)
    rest = [block for block in range(BLOCKS + 1) if block not in written]
    for number, layer in enumerate(target.layers):
        layer, sent = layer.view(torch.uint8), source.layers[number].view(torch.uint8)
        assert not layer[:, rest].any()
        inside = start <= number < stop
        came = torch.equal(layer[:, written], sent[:, blocks])
        assert came if inside else not layer.any()
    source.clear(blocks)
    assert not any(layer[:, blocks].float().any() for layer in source.layers)


@pytest.mark.parametrize("blocks", [[0, BLOCKS + 1], [-1]])
def test_a_block_that_is_none_is_refused(blocks):
    cache = filled(KvLayout((LayerShape(2, 8),), 4, "float32", "m"))
    wire = torch.zeros(len(blocks) * cache.block_bytes(0, 1), dtype=torch.uint8)
    for copy in (cache.gather, cache.scatter):
        with pytest.raises(IndexError, match="of 12"):
            copy(blocks, 0, 1, wire)


def test_a_buffer_of_another_size_is_refused():
    cache = filled(KvLayout((LayerShape(2, 8),), 4, "float32", "m"))
    with pytest.raises(ValueError, match="must be"):
        cache.gather([1], 0, 1, torch.zeros(10, dtype=torch.uint8))
