"""Cutting transfers into frames, and the settings that bound them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.kv.layout import KvLayout, LayerShape
from engine.kv.memory import block_bytes
from kv_transfer.config import TransferConfig
from kv_transfer.frames.frame_plan import (
    Coverage,
    Extent,
    check_frame_bytes,
    frame_size,
    largest_block,
    plan_frames,
)
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.proto_convert import layout_from_proto, layout_to_proto
from protos import kv_transfer_pb2 as pb
from tests.kv_transfer.rig import LAYOUT, QUICK, make_cache

layouts = st.builds(
    KvLayout,
    layers=st.lists(
        st.builds(LayerShape, st.integers(1, 4), st.sampled_from([2, 4, 8])), min_size=1, max_size=6
    ).map(tuple),
    block_size=st.sampled_from([4, 8]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    model_identity=st.just("m"),
)


@given(st.data(), layouts, st.integers(2048, 16384))
def test_a_plan_covers_every_block_of_every_layer_once(data, layout, frame_bytes):
    check_frame_bytes(layout, 2048)
    cells = []
    extent = data.draw(extents(len(layout.layers), 40))
    for part in plan_frames(layout, extent, frame_bytes):
        count = part.block_stop - part.block_start
        size = count * block_bytes(layout, part.layer_start, part.layer_stop)
        assert 0 < part.bytes == size <= frame_bytes
        cells += cells_of(part)
    assert sorted(cells) == cells_of(extent)
    assert len(cells) == len(set(cells))


@st.composite
def extents(draw, layers, blocks):
    first_layer, first_block = draw(st.integers(0, layers - 1)), draw(st.integers(0, blocks - 1))
    last_layer = draw(st.integers(first_layer + 1, layers))
    return Extent(first_layer, last_layer, first_block, draw(st.integers(first_block + 1, blocks)))


def cells_of(area):
    return [
        (layer, block)
        for layer in range(area.layer_start, area.layer_stop)
        for block in range(area.block_start, area.block_stop)
    ]


@given(st.integers(1, 6), st.integers(1, 20), st.data())
def test_extents_cover_each_computed_block_once_and_both_sides_agree(layers, blocks, data):
    computed, announced, received = (Coverage(layers, blocks) for _ in range(3))
    cells = []
    steps = st.lists(st.tuples(st.integers(0, blocks), st.integers(0, layers)), max_size=12)
    for block_stop, layer_stop in [*data.draw(steps), (blocks, layers)]:
        computed.reach(block_stop, layer_stop)
        for extent in computed.beyond(announced):
            assert announced.add(extent)
            assert received.add(extent)
            cells += cells_of(extent)
        assert not computed.beyond(announced)
        assert received.whole == computed.whole
    assert sorted(cells) == cells_of(Extent(0, layers, 0, blocks))


@given(st.integers(1, 4), st.integers(1, 8), st.data())
def test_an_extent_out_of_order_is_refused_and_changes_nothing(layers, blocks, data):
    coverage, twin = Coverage(layers, blocks), Coverage(layers, blocks)
    reached = data.draw(st.integers(0, blocks))
    coverage.reach(reached, layers)
    twin.reach(reached, layers)
    any_number = st.integers(-2, 12)
    extent = data.draw(st.builds(Extent, any_number, any_number, any_number, any_number))
    right = (
        0 <= extent.layer_start < extent.layer_stop <= layers
        and extent.block_start == reached < extent.block_stop <= blocks
    )
    assert coverage.add(extent) == right
    assert right or not coverage.beyond(twin)


@given(st.data(), layouts, st.integers(2048, 1 << 24))
def test_a_receiver_accepts_every_planned_frame_size(data, layout, limit):
    extent = data.draw(extents(len(layout.layers), 40))
    assert largest_block(layout) <= frame_size(layout, extent, limit) <= limit


def test_small_transfers_are_one_frame():
    assert len(plan_frames(LAYOUT, Extent(0, 4, 0, 2), 8192)) == 1


def test_a_frame_must_be_large_enough_for_a_block():
    with pytest.raises(ConfigError, match=r"1000 cannot hold a block of 1024 bytes"):
        check_frame_bytes(make_cache(1).layout, 1000)


@given(layouts)
def test_a_layout_survives_the_wire(layout):
    assert layout_from_proto(layout_to_proto(layout)) == layout


def test_combined_messages_are_split_again_unchanged():
    beat = wire.to_receiver(heartbeat=pb.Heartbeat())
    messages = [beat, *(wire.to_receiver(done=pb.Done(transfer=str(n), frames=n)) for n in (1, 2))]
    whole = pb.SenderMessage.FromString(wire.combine(messages).SerializeToString())
    assert [*map(wire.content, wire.split(whole))] == [*map(wire.content, messages)]
    assert not beat.more
    assert wire.combine([beat]) is beat


@pytest.mark.parametrize(
    "wrong",
    [{"frame_bytes": 0}, {"io_timeout_s": 0.0}, {"silence_s": 0.3}],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TransferConfig(**wrong)
    assert QUICK.transport == "gloo"
