"""Tiles of the skinny product: from the weight's shape alone, enough programs, no needless part."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.products.skinny_tiles import rows_of_tile, tiles_for

H200 = 132


@pytest.mark.parametrize(
    ("outputs", "inputs", "splits", "programs"),
    [(4096, 4096, 4, 128), (6144, 4096, 3, 144), (4096, 14336, 4, 128), (128256, 4096, 1, 1002)],
)
def test_an_8b_shape_fills_an_h200(outputs, inputs, splits, programs):
    tiles = tiles_for(outputs, inputs, 2, H200)
    assert tiles.splits == splits
    assert -(-outputs // tiles.outputs) * splits == programs


def test_a_gated_product_has_two_half_tiles():
    plain, gated = tiles_for(14336, 4096, 2, H200), tiles_for(14336, 4096, 2, H200, gated=True)
    assert gated == replace(plain, outputs=plain.outputs // 2, splits=1)


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.sampled_from([2, 4]), st.integers(1, 200))
def test_every_part_has_work(outputs, inputs, itemsize, processors):
    tiles = tiles_for(outputs, inputs, itemsize, processors)
    deep = -(-inputs // tiles.depth)
    assert 1 <= tiles.splits <= max(1, deep // 4)
    # A processor too few is no reason for another part.
    across = -(-outputs // tiles.outputs)
    assert tiles.splits == 1 or across * (tiles.splits - 1) < processors


@given(st.integers(1, 64))
def test_rows_of_a_tile(rows):
    assert rows <= rows_of_tile(rows) < max(17, 2 * rows)
