"""Weights are never twice in host memory, and on their way to a device hardly at all."""

import pytest

from bench.engine.load_memory import SINKS, make_model, measure

SIZE = 384 << 20
# A buffer of 64 MiB, rotary tables, the self-check, and what the allocator keeps.
BESIDE = 160 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("made")
    make_model(made, SIZE)
    return made


@pytest.mark.parametrize("sink", SINKS)
def test_the_height_of_a_load_is_the_weights_that_stay(folder, sink):
    found = measure(folder, sink)
    assert 0.9 * SIZE < found.weights < 1.1 * SIZE
    stays = found.weights if sink == "cpu" else 0
    assert stays < found.growth < stays + BESIDE
