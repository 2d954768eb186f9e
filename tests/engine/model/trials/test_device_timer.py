"""Seconds of a call, with clocks and events that are told what to say."""

import itertools
import time

import pytest
import torch

from engine.model.trials.device_timer import ColdTimer, device_seconds, host_seconds


class Event:
    """A CUDA event on a clock that calls move on."""

    now_ms = 0.0

    def __init__(self, timing):
        assert timing

    def record(self):
        self.at_ms = Event.now_ms

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.fixture
def took(monkeypatch):
    """Has a call take so many milliseconds on both clocks."""
    monkeypatch.setattr(Event, "now_ms", 0.0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(time, "perf_counter", lambda: Event.now_ms / 1e3)

    def step(ms):
        Event.now_ms += ms

    return step


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_median_counts_neither_the_first_call_nor_what_comes_before(device, took):
    times, before = iter([500.0, 3.0, 1.0, 2.0]), []
    found = device_seconds(
        lambda: took(next(times)),
        torch.device(device),
        3,
        before=lambda: before.append(took(100.0)),
    )
    assert found == pytest.approx(2e-3)
    assert len(before) == 3


def test_a_call_that_ends_on_the_host_is_timed_there(took):
    times = iter([500.0, 3.0, 1.0, 2.0])
    assert host_seconds(lambda: took(next(times)), 3) == pytest.approx(2e-3)


def test_each_call_of_a_cold_timer_is_behind_a_write(took, monkeypatch):
    order = []
    monkeypatch.setattr(torch.Tensor, "zero_", lambda flush: order.append(flush.numel()))
    seconds = ColdTimer(torch.device("cpu"))
    calls = itertools.count(1)
    assert seconds(lambda: order.append("call") or took(float(next(calls)))) == pytest.approx(9e-3)
    assert order == ["call", *[256 * 2**20, "call"] * 15]
