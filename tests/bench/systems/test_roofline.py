"""Limits that follow from what the machine does."""

from __future__ import annotations

import pytest

from bench.core.model_135m import ModelShape
from bench.core.statistics import Spread
from bench.systems.roofline import Meter, Roofline

SHAPE = ModelShape()
WEIGHTS = 134_479_872


def _limits(bandwidth, products):
    return Roofline(Spread((bandwidth / 2, bandwidth)), Spread((products,)))


def test_one_sequence_waits_for_the_weights():
    limits = _limits(50e9, 1e15)
    read = 2 * WEIGHTS + 160 * SHAPE.kv_bytes
    assert limits.decode(SHAPE, 1, 160) == pytest.approx(50e9 / read)


def test_many_sequences_share_the_weights_but_not_the_context():
    limits = _limits(50e9, 1e15)
    short, long = limits.decode(SHAPE, 32, 160), limits.decode(SHAPE, 32, 1000)
    assert long < short < 32 * limits.decode(SHAPE, 1, 160)


def test_a_prompt_waits_for_its_products():
    slow, fast = _limits(50e9, 500e9), _limits(50e9, 1000e9)
    assert fast.prefill(SHAPE, 1024) == pytest.approx(2 * slow.prefill(SHAPE, 1024))
    # Two operations for each weight of the layers are most of it.
    assert slow.prefill(SHAPE, 1024) == pytest.approx(500e9 / (2 * SHAPE.layer_parameters), rel=0.2)


def test_the_machine_is_measured_whatever_its_processor():
    meter = Meter(repeats=1)
    meter.sample()
    found = meter.limits()
    assert min(*found.bandwidth.values, *found.products.values) > 0
