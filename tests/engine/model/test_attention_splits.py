"""Into how many parts single queries' keys are cut."""

from hypothesis import given
from hypothesis import strategies as st

from engine.model.attention_triton import splits

ROWS = st.integers(1, 300)
SHAPES = st.tuples(
    st.sampled_from([1, 2, 8, 32]),
    st.integers(1, 160),
    st.integers(1, 200_000),
    st.sampled_from([16, 64, 128]),
)


@given(ROWS, SHAPES)
def test_a_power_of_two_that_a_long_row_among_short_ones_can_use(rows, shape):
    keys, tile = shape[2:]
    parts = splits(rows, *shape)
    assert parts & (parts - 1) == 0
    assert (1 if keys <= tile else 2) <= parts <= 64
    assert (parts - 1) * tile < 2 * keys


@given(ROWS, ROWS, SHAPES)
def test_more_rows_are_never_cut_into_more(few, more, shape):
    few, more = sorted((few, more))
    assert splits(more, *shape) <= splits(few, *shape)


def test_an_eight_billion_shape_on_132_processors():
    """Two programs a processor, about."""
    assert [splits(rows, 8, 132, 8192, 128) for rows in (1, 2, 8, 16, 32, 64)] == [
        *(32, 16, 4, 2, 2, 2)
    ]
