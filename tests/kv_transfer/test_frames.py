"""Cutting transfers into frames, and the settings that bound them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.kv_cache import block_bytes
from engine.layout import KvLayout, LayerShape
from kv_transfer.config import TransferConfig
from kv_transfer.frames import check_frame_bytes, plan_frames
from kv_transfer.wire import layout_from_proto, layout_to_proto
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


@given(layouts, st.integers(1, 40), st.integers(2048, 16384))
def test_a_plan_covers_every_block_of_every_layer_once(layout, blocks, frame_bytes):
    check_frame_bytes(layout, 2048)
    cells = []
    for part in plan_frames(layout, blocks, frame_bytes):
        count = part.block_stop - part.block_start
        size = count * block_bytes(layout, part.layer_start, part.layer_stop)
        assert 0 < part.bytes == size <= frame_bytes
        cells += [
            (layer, block)
            for layer in range(part.layer_start, part.layer_stop)
            for block in range(part.block_start, part.block_stop)
        ]
    assert sorted(cells) == [(i, j) for i in range(len(layout.layers)) for j in range(blocks)]
    assert len(cells) == len(set(cells))


def test_small_transfers_are_one_frame():
    assert len(plan_frames(LAYOUT, 2, 8192)) == 1


def test_a_frame_must_hold_a_block():
    with pytest.raises(ConfigError, match=r"1000 cannot hold a block of 1024 bytes"):
        check_frame_bytes(make_cache(1).layout, 1000)


@given(layouts)
def test_a_layout_survives_the_wire(layout):
    assert layout_from_proto(layout_to_proto(layout)) == layout


@pytest.mark.parametrize(
    "wrong",
    [{"transport": "pigeon"}, {"frame_bytes": 0}, {"io_timeout_s": 0.0}, {"silence_s": 0.3}],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TransferConfig(**wrong)
    assert QUICK.transport == "gloo"
