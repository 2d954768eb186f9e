"""Slices on a device that launches: they end by its time, and little is ahead of the host."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.masks import MaskMaker
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.runner import ForwardOutput
from engine.runtime.forward_pass import Pass
from engine.runtime.slice_limit import LAYERS_PER_MARK, MOST_MARKS
from engine.sampling.sampler import draw
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.paper_marks import LaunchingDevice

LAYERS = 24
# Launched and not marked yet, beside what the marks stand for; and the part that is launched next.
MOST_AHEAD = (MOST_MARKS + 1) * LAYERS_PER_MARK


@dataclass
class LaunchingRunner:
    """Layers that take the host `launch_s` and the device `layer_s`."""

    device: LaunchingDevice
    launch_s: float
    layer_s: float
    replays = None
    kv_format = "plain"

    def layers(self, batch):
        for number in range(LAYERS):
            self.device.launch(self.launch_s, self.layer_s)
            yield number + 1
        return ForwardOutput(torch.zeros(len(batch.last), 9), lambda rows: torch.zeros(1, 9))


class MarkedCache(KvCache):
    """A cache on the device on paper."""

    launches = True

    def __init__(self, device):
        layout = KvLayout((LayerShape(1, 1),) * LAYERS, 16, "float32", "paper")
        super().__init__(layout, 4, torch.device("cpu"))
        self._marks = device

    def mark(self):
        return self._marks.mark()

    def synchronize(self):
        self._marks.synchronize()


def begun(launch_s, layer_s):
    """A pass over the device on paper, and that device."""
    device = LaunchingDevice()
    made = Sequence("a", [1] * 30, 30, SamplingParams(temperature=0.0, max_tokens=2))
    made.blocks = [0, 1]
    runner, cache = LaunchingRunner(device, launch_s, layer_s), MarkedCache(device)
    return Pass(runner, cache, [Span(made, 0, 30)], None, MaskMaker(9), draw), device


TIMES = st.floats(1e-4, 5e-3)


@settings(max_examples=200, deadline=None)
@given(launch_s=TIMES, layer_s=TIMES, for_s=st.floats(0.0, 0.06))
def test_a_slice_takes_its_time_on_the_device_or_one_layer(launch_s, layer_s, for_s):
    run, device = begun(launch_s, layer_s)
    results, slices = None, 0
    while results is None:
        began_s = device.host_s
        results = run.advance(for_s)
        slices += 1
        assert device.host_s - began_s <= max(for_s, layer_s + launch_s) + launch_s + 1e-9
    assert run.layers_done == LAYERS
    # Little is wasted: at worst each layer counts as if the device had waited for its launch.
    assert slices <= LAYERS / max(1, int(for_s / (layer_s + launch_s))) + 1


@settings(max_examples=100, deadline=None)
@given(launch_s=TIMES, layer_s=TIMES)
def test_few_layers_are_ahead_of_the_device(launch_s, layer_s):
    """A long pass is launched in a moment, and may still be overtaken."""
    run, device = begun(launch_s, layer_s)
    assert run.advance(1000.0) is not None
    assert device.most_ahead_s <= (MOST_AHEAD + 1) * layer_s
    assert device.marks <= 2 + LAYERS / LAYERS_PER_MARK


def test_a_device_has_no_pause_within_a_slice_but_after_the_first_layer():
    run, device = begun(0.0003, 0.0013)
    assert run.advance(1000.0) is not None
    assert device.host_s == pytest.approx(LAYERS * 0.0013 + 2 * 0.0003)


def test_a_slice_that_is_cut_ends_behind_the_layers_that_were_launched(monkeypatch):
    run, device = begun(0.0001, 0.0013)
    launch = device.launch

    def cutting(host_s, device_s):
        launch(host_s, device_s)
        if device.free_s > 10 * 0.0013:
            run.cut()

    monkeypatch.setattr(device, "launch", cutting)
    assert run.advance(1000.0) is None
    assert 10 <= run.layers_done <= 10 + MOST_AHEAD
    assert device.host_s == pytest.approx(device.free_s)


def test_layers_are_known_to_be_stored_while_later_layers_are_computed(monkeypatch):
    run, device = begun(0.0001, 0.0013)
    seen, launch = [], device.launch

    def noting(host_s, device_s):
        seen.append(run.layers_done)
        assert device.host_s >= run.layers_done * 0.0013
        launch(host_s, device_s)

    monkeypatch.setattr(device, "launch", noting)
    assert run.advance(1000.0) is not None
    assert seen == sorted(seen)
    assert seen[-1] >= LAYERS - 1 - MOST_AHEAD


def test_what_is_known_to_be_stored_only_rises_from_slice_to_slice():
    run, _ = begun(0.0001, 0.0013)
    known = [0]
    while run.advance(0.005) is None:
        known.append(run.layers_done)
    assert known == sorted(set(known))


def test_a_pass_without_a_limit_has_no_marks():
    run, device = begun(0.0001, 0.0013)
    assert run.advance() is not None
    assert device.marks == 0
    assert run.layers_done == LAYERS
