"""The prefill loop over an engine that a test lets go on: which prompts are computed when."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from engine.errors import Internal
from engine.kv.block_pool import BlockPool
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from engine.types.urgency import Urgency
from prefill_pool.loop import PrefillLoop
from prefill_pool.scheduler import PrefillScheduler
from tests.paused_engine import LAYERS, PausedEngine

CHUNK = 64


@asynccontextmanager
async def running(cores=""):
    """A loop over an engine whose steps go on only when a test lets them.

    `cores` names the cores that the engine shares with others.
    """
    engine = PausedEngine(cores)
    scheduler = PrefillScheduler(
        BlockPool(1000), PromptOrder(CHUNK), block_size=16, max_waiting=100, parked_fraction=1.0
    )
    worker = EngineWorker(engine)
    subject = PrefillLoop(scheduler, worker)
    task = asyncio.create_task(subject.run())
    try:
        yield subject, engine, scheduler, worker
    finally:
        engine.go_on()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        worker.close()


def submit(subject, owner, tokens, **more):
    return subject.submit(Sequence(owner, [1] * tokens, tokens, SamplingParams(), **more))


@pytest.mark.parametrize("short", [8, 60, CHUNK])
@pytest.mark.parametrize("slices", [0, 1, LAYERS - 1, LAYERS, 2 * LAYERS + 1])
async def test_not_a_slice_of_ten_cancelled_prompts_is_computed_before_a_short_one(short, slices):
    """They go while a slice is under way, whichever; the next one is the short prompt's."""
    async with running() as (subject, engine, scheduler, _):
        long = [submit(subject, f"long{number}", 1500) for number in range(10)]
        await engine.pause_in_slice(slices)
        for job in long:
            subject.release(job)
        after = submit(subject, "short", short)
        engine.go_on()
        await asyncio.wait_for(after.first_token, 30)
        assert engine.slices[slices + 1 :] == [["short"]] * LAYERS
        subject.release(after)
        assert scheduler.pool.counts().used == 0


async def test_prompts_share_the_seconds_of_their_pass_by_their_tokens():
    async with running() as (subject, engine, *_):
        began_s = time.monotonic()
        sizes = {"a": 8, "b": 24, "c": 32, "d": 100}
        jobs = [submit(subject, owner, tokens) for owner, tokens in sizes.items()]
        await engine.pause_in_slice(0)
        assert engine.slices == [["a", "b", "c"]]
        engine.go_on()
        await asyncio.gather(*(job.first_token for job in jobs))
        charged_s = [job.sequence.pass_s for job in jobs]
        assert sum(charged_s) <= time.monotonic() - began_s
        assert [one / charged_s[0] for one in charged_s[:3]] == pytest.approx([1, 3, 4])
        # It began when they had ended, so that all of these seconds are different ones.
        assert charged_s[3] > 0


async def test_a_slice_is_cut_for_a_new_prompt_and_halted_without_prompts():
    async with running() as (subject, engine, *_):
        first, second = submit(subject, "first", 8), submit(subject, "second", 8)
        await engine.pause_in_slice(0)
        assert engine.slices == [["first", "second"]]
        cuts = engine.cuts
        subject.release(first)
        assert engine.halts == 0
        subject.release(second)
        assert engine.halts == 1
        assert engine.cuts == cuts
        third = submit(subject, "third", 8)
        assert engine.cuts == cuts + 1
        engine.go_on()
        await asyncio.wait_for(third.first_token, 30)


async def test_an_idle_loop_yields_its_cores():
    async with running() as (subject, engine, *_):
        job = submit(subject, "only", 8)
        await engine.pause_in_slice(0)
        before = engine.yields
        engine.go_on()
        await asyncio.wait_for(job.first_token, 30)
        assert engine.yields == before + 1


async def test_the_progress_of_a_pass_is_reported_while_it_goes_on():
    async with running() as (subject, engine, *_):
        told, almost_whole = [], asyncio.Event()

        def watch(tokens, layers):
            told.append((tokens, layers))
            if (tokens, layers) == (CHUNK, LAYERS - 1):
                almost_whole.set()

        job = submit(subject, "long", CHUNK)
        job.watch = watch
        await engine.pause_in_slice(LAYERS - 1)
        # The engine is in its last slice, and was not waited for.
        await asyncio.wait_for(almost_whole.wait(), 30)
        engine.go_on()
        await asyncio.wait_for(job.first_token, 30)
        assert told[-1] == (CHUNK, None)


@pytest.mark.parametrize(("pressed", "cores"), [(True, "host"), (True, ""), (False, "host")])
async def test_parts_of_a_pass_take_no_cores_from_pressed_prompts(pressed, cores):
    async with running(cores) as (subject, engine, *_):
        told = []
        job = submit(
            subject, "long", 2 * CHUNK, urgency=Urgency.PRESSED if pressed else Urgency.PROMPTS
        )
        job.watch = lambda tokens, layers: told.append((tokens, layers))
        engine.go_on()
        await asyncio.wait_for(job.first_token, 30)
        # Of a whole pass once its KV is there, and once more when its end is answered.
        assert [report for report in told if report[1] is None] == [
            (0, None),
            *[(CHUNK, None)] * 2,
            *[(2 * CHUNK, None)] * 2,
        ]
        assert any(layers for _, layers in told) is not (pressed and bool(cores))


@pytest.mark.parametrize(
    ("urgency", "cores", "times"),
    [(Urgency.URGENT, "host", 1), (Urgency.URGENT, "", 2), (Urgency.PRESSED, "host", 2)],
)
async def test_kv_of_urgent_prompts_on_shared_cores_leaves_with_the_next_pass(
    urgency, cores, times
):
    async with running(cores) as (subject, engine, *_):
        told = []
        job = submit(subject, "only", CHUNK, urgency=urgency)
        job.watch = lambda tokens, layers: told.append((tokens, layers))
        engine.go_on()
        await asyncio.wait_for(job.first_token, 30)
        assert told.count((CHUNK, None)) == times


async def test_the_next_pass_begins_before_the_results_of_the_last_are_sent():
    async with running() as (subject, engine, *_):
        told = []
        for owner in ("first", "second"):
            job = submit(subject, owner, CHUNK)
            job.watch = lambda tokens, layers, owner=owner: told.append((owner, tokens, layers))
        engine.go_on()
        await asyncio.wait_for(job.first_token, 30)
        # Twice: its KV was there before its last token was sampled.
        assert told.count(("first", CHUNK, None)) == 2
        told.remove(("first", CHUNK, None))
        assert told.index(("second", 0, None)) < told.index(("first", CHUNK, None))


async def test_a_loop_that_ends_takes_its_pass_with_it():
    async with running() as (subject, engine, _, worker):
        submit(subject, "long", CHUNK)
        await engine.pause_in_slice(1)
        task = next(one for one in asyncio.all_tasks() if "PrefillLoop.run" in repr(one))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.go_on()
        await asyncio.to_thread(worker.close)
        assert len(engine.slices) == 2


async def test_a_pass_that_cannot_begin_fails_with_its_requests_alone(monkeypatch):
    async with running() as (subject, engine, *_):
        begin = engine.begin

        def fail_once(spans, stored=None):
            monkeypatch.setattr(engine, "begin", begin)
            raise RuntimeError("broke")

        monkeypatch.setattr(engine, "begin", fail_once)
        job = submit(subject, "broken", 8)
        with pytest.raises(Internal, match="a prefill step failed"):
            await asyncio.wait_for(job.first_token, 30)
        subject.release(job)
        engine.go_on()
        await asyncio.wait_for(submit(subject, "later", 8).first_token, 30)


async def test_a_prompt_whose_watcher_fails_ends_alone(caplog):
    async with running() as (subject, engine, *_):
        jobs = [submit(subject, owner, 8) for owner in ("broken", "beside")]

        def watch(tokens, layers):
            raise RuntimeError("broke")

        jobs[0].watch = watch
        engine.go_on()
        with pytest.raises(Internal, match="handed over"):
            await asyncio.wait_for(jobs[0].first_token, 30)
        for job in (jobs[1], submit(subject, "later", 8)):
            await asyncio.wait_for(job.first_token, 30)
        assert [one.message for one in caplog.records].count("no hand-over of KV") == 1
