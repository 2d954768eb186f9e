"""An engine that has work and completes none is stalled; nothing else is taken for that."""

from __future__ import annotations

import asyncio

from engine.runtime.engine_thread import EngineWorker
from engine.runtime.step_deadline import StepDeadline
from tests.eventually import eventually
from tests.paused_engine import PausedEngine


def look(deadline, times, has_work=True):
    """What the deadline says at each of these times."""
    return [deadline.overdue(has_work, now) for now in times]


def test_work_without_a_completed_step_is_overdue_after_the_deadline():
    deadline = StepDeadline(10.0)
    assert not any(look(deadline, range(100, 111)))
    assert look(deadline, [111]) == [True]


def test_each_completed_step_begins_the_deadline_anew():
    deadline = StepDeadline(10.0)
    look(deadline, range(9))
    deadline.progressed(9.0)
    assert not any(look(deadline, range(9, 20)))
    assert look(deadline, [20]) == [True]


def test_an_idle_engine_is_never_overdue():
    deadline = StepDeadline(10.0)
    assert not any(look(deadline, range(0, 1000, 3), has_work=False))
    deadline.progressed(1000.0)
    assert not any(look(deadline, range(1000, 1011)))


def test_an_engine_that_goes_on_is_not_overdue_any_more():
    deadline = StepDeadline(10.0)
    assert look(deadline, range(12))[-1]
    deadline.progressed(12.0)
    assert look(deadline, [13.0]) == [False]


def test_a_pause_of_the_whole_process_is_not_the_engines():
    deadline = StepDeadline(10.0)
    look(deadline, range(5))
    assert not any(look(deadline, range(60, 71)))
    assert look(deadline, [71]) == [True]


async def test_a_paused_engine_stalls_its_worker_until_it_goes_on():
    engine = PausedEngine()
    worker = EngineWorker(engine, step_timeout_s=0.05)
    try:
        assert not worker.stalled(due=False)
        run = worker.begin([])
        task = asyncio.ensure_future(worker.pursue(run, 0.0, lambda: False, lambda: None))
        await engine.pause_in_slice(0)
        await eventually(lambda: worker.stalled(due=False))
        engine.go_on()
        await task
        assert not worker.stalled(due=False)
    finally:
        worker.close()


async def test_a_step_that_is_due_and_never_begins_is_a_stall_too():
    worker = EngineWorker(PausedEngine(), step_timeout_s=0.05)
    try:
        await eventually(lambda: worker.stalled(due=True))
        assert not worker.stalled(due=False)
    finally:
        worker.close()
