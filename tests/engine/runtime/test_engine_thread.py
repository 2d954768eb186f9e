"""The engine's thread: a pass goes on by itself until there is something else to do."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.device import best_device
from engine.runtime import engine_thread as module
from engine.runtime.engine_thread import EngineWorker, engine_thread
from tests.paused_engine import LAYERS, PausedEngine


class Scripted:
    """A pass of `LAYERS` slices that notes the order in which passes are computed."""

    def __init__(self, order, fault=None):
        self.spans = []
        self.layers_done = 0
        self._order = order
        self._fault = fault

    def advance(self, for_s=None):
        self._order.append("slice")
        self.layers_done += 1
        if self._fault and self.layers_done == 2:
            raise self._fault
        return ["done"] if self.layers_done == LAYERS else None


@pytest.fixture
def worker():
    worker = EngineWorker(PausedEngine())
    yield worker
    worker.close()


async def test_a_pass_is_computed_in_one_call_and_reported_between_slices(worker):
    order, told, threads = [], [], set()
    run = Scripted(order)

    def pause():
        threads.add(threading.current_thread().name)
        return False

    assert await worker.pursue(run, 0.0, pause, lambda: told.append(threading.get_ident())) == [
        "done"
    ]
    assert order == ["slice"] * LAYERS
    assert told == [threading.get_ident()] * (LAYERS - 1)
    assert all(name.startswith("engine") for name in threads)


async def test_it_pauses_when_it_is_asked_to_and_goes_on_where_it_was(worker):
    order = []
    run = Scripted(order)
    asked = iter([False, True])
    assert await worker.pursue(run, 0.0, lambda: next(asked), lambda: None) is None
    assert len(order) == 2
    assert await worker.pursue(run, 0.0, lambda: False, lambda: None) == ["done"]
    assert len(order) == LAYERS


async def test_another_step_waits_for_one_slice(worker):
    order = []
    released = threading.Event()

    class Blocked(Scripted):
        def advance(self, for_s=None):
            assert released.wait(30)
            return super().advance(for_s)

    run = Blocked(order)
    first = worker.pursue(run, 0.0, lambda: False, lambda: None)
    step = worker.step([])
    step.add_done_callback(lambda _: order.append("step"))
    released.set()
    assert await first is None
    await step
    await asyncio.sleep(0)
    assert order == ["slice", "step"]
    assert await worker.pursue(run, 0.0, lambda: False, lambda: None) == ["done"]


async def test_a_fault_of_a_later_slice_is_raised(worker):
    run = Scripted([], fault=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await worker.pursue(run, 0.0, lambda: False, lambda: None)


@pytest.mark.skipif(best_device().type != "cpu", reason="only a CPU thread has a lower priority")
def test_on_a_cpu_an_engines_threads_give_way_to_event_loops():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def of_one_started_here():
        with ThreadPoolExecutor(1) as helper:
            return helper.submit(niceness).result()

    with engine_thread() as thread:
        assert thread.submit(niceness).result() > niceness()
        assert thread.submit(of_one_started_here).result() > niceness()
    assert of_one_started_here() == niceness()


@pytest.mark.skipif(best_device().type != "cpu", reason="only a CPU thread has a lower priority")
async def test_what_is_prepared_beside_steps_gives_way_as_they_do():
    class Preparing(PausedEngine):
        def prepare_improvement(self):
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            return False

    engine = Preparing()
    worker = EngineWorker(engine)
    await worker.improve()
    worker.close()
    assert engine.niceness > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize(("device", "shorter"), [("cuda", True), ("cpu", False)])
def test_on_a_gpu_a_busy_event_loop_gives_pythons_lock_away_sooner(monkeypatch, device, shorter):
    """The stand-in device has only a kind."""
    usual_s = sys.getswitchinterval()
    monkeypatch.setattr(module, "best_device", lambda: torch.device(device))
    try:
        with engine_thread() as thread:
            thread.submit(int).result()
        assert (sys.getswitchinterval() < usual_s / 5) is shorter
    finally:
        sys.setswitchinterval(usual_s)
