"""A sequence's blocks as an array are those of its list, whatever list came before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.block_table import BlockTable

LISTS = st.lists(st.integers(0, 9), max_size=6)


@given(st.lists(st.tuples(st.booleans(), LISTS), max_size=8))
def test_the_array_is_the_list_after_any_lists_before(steps):
    """A list either goes on the list before, as a sequence grows, or begins anew."""
    table, blocks = BlockTable(), []
    for grows, new in steps:
        blocks = [*blocks, *new] if grows else list(new)
        for _ in range(2):
            numbers = table.of(blocks)
            assert numbers.tolist() == blocks
            assert numbers.dtype == np.int32


def test_the_same_list_is_converted_once():
    table, blocks = BlockTable(), [3, 1]
    assert table.of(blocks) is table.of(blocks)
