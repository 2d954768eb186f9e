"""The sampler's numbers: a published generator, of seed, choice and position alone."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.counter_rng import splitmix64, stream_of, uniform, uniform_at

SEEDS = st.integers(0, 2**64 - 1)


def test_matches_published_outputs():
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(1234567, index) for index in range(3)] == expected


@settings(deadline=None)
@given(SEEDS, st.integers(0, 127), st.integers(0, 2**40))
def test_is_in_the_unit_interval_and_a_pure_function(seed, choice, position):
    number = uniform(seed, choice, position)
    assert 0.0 <= number < 1.0
    assert number * 2**53 == int(number * 2**53)
    assert uniform(seed, choice, position) == number


@settings(deadline=None)
@given(st.lists(st.tuples(SEEDS, st.integers(0, 127), st.integers(0, 2**40)), min_size=1))
def test_many_streams_have_the_numbers_of_each(draws):
    streams = np.array([stream_of(seed, choice) for seed, choice, _ in draws], np.uint64)
    found = uniform_at(streams, [position for *_, position in draws])
    assert found.tolist() == [uniform(*one) for one in draws]


def test_neighbours_are_uniform_and_unrelated():
    numbers = [
        uniform(seed, choice, position)
        for seed, choice, position in itertools.product(range(20), range(10), range(50))
    ]
    assert len(set(numbers)) == len(numbers)
    bins = [0] * 100
    for number in numbers:
        bins[int(number * 100)] += 1
    # 99 degrees of freedom: mean 99, standard deviation 14.
    assert sum((count - 100) ** 2 / 100 for count in bins) < 160
    for distance in (1, 50, 500):  # next position, next choice, next seed
        pairs = zip(numbers, numbers[distance:], strict=False)
        covariance = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / (len(numbers) - distance)
        assert abs(covariance * 12) < 0.04
