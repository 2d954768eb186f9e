"""What streams get from a decode loop in simulated time: intervals of steps, and joining."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from itertools import chain
from statistics import quantiles

import pytest

from decode_pool.itl_budget import ItlBudget
from decode_pool.shared_cores import StepInterval
from engine.errors import Internal
from engine.types.urgency import Urgency
from tests.decode_pool.paper_loop import (
    LAYERS,
    PASS_S,
    STEP_S,
    TOKENS_PER_S,
    BrokenText,
    PaperEngine,
    committed,
    finish,
    new_job,
    prompt,
    running,
    stream,
)
from tests.engine.text.test_completion import TOKENIZERS
from tests.eventually import eventually
from tests.metrics_page import recorded
from tests.paused_engine import PausedEngine


def interval_s(urgency, step_s=STEP_S):
    """From one step to the next beside other engines' prompts of that urgency."""
    itl = ItlBudget(0.06, 2.0)
    itl.stepped(step_s)
    return step_s + StepInterval(itl).wait_s(step_s, urgency)


@pytest.mark.parametrize("urgency", Urgency)
async def test_steps_keep_an_interval_while_others_on_the_host_compute_prompts(
    monkeypatch, urgency
):
    async with running(monkeypatch, 2.0) as (subject, engine):

        async def wait(most_s=None, wait=subject.wakeup.wait):
            if most_s is None:
                return await wait()
            assert engine.yields > yields
            engine.now += most_s
            return None

        monkeypatch.setattr(subject.wakeup, "wait", wait)
        yields, engine.urgency = engine.yields, urgency
        await asyncio.gather(*(stream(subject, f"s{n}", 40) for n in range(4)))
        assert quantiles(engine.itls(), n=4) == pytest.approx([interval_s(urgency)] * 3)


async def test_an_engine_with_a_device_of_its_own_keeps_no_interval(monkeypatch):
    engine = PaperEngine()
    engine.shared_cores, engine.urgency = "", Urgency.URGENT
    async with running(monkeypatch, 2.0, engine=engine) as (subject, _):
        await asyncio.gather(*(stream(subject, f"s{n}", 40) for n in range(4)))
        assert engine.itls() == pytest.approx([STEP_S] * len(engine.itls()))


async def test_steps_that_prompts_slow_down_keep_no_longer_an_interval(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, engine):

        async def wait(most_s=None, wait=subject.wakeup.wait):
            if most_s is None:
                return await wait()
            engine.now += most_s
            return None

        monkeypatch.setattr(subject.wakeup, "wait", wait)
        await stream(subject, "alone", 20)
        engine.urgency, engine.step_s, began_s = Urgency.PROMPTS, 1.25 * STEP_S, engine.now
        await stream(subject, "beside", 40)
        assert max(engine.itls(began_s)) == pytest.approx(interval_s(Urgency.PROMPTS))


@pytest.mark.parametrize(
    ("urgency", "tokens", "waits"),
    [
        (Urgency.PROMPTS, 30, False),
        (Urgency.PRESSED, 30, False),
        (Urgency.URGENT, 5, False),
        (Urgency.URGENT, 30, True),
    ],
)
async def test_a_stream_that_joins_waits_for_the_step_if_its_tokens_make_up_for_it(
    monkeypatch, urgency, tokens, waits
):
    joined = []
    late_s = (interval_s(urgency) - STEP_S) / 2 if waits else 0.0
    async with running(monkeypatch, 2.0) as (subject, engine):

        async def wait(most_s=None, wait=subject.wakeup.wait):
            if most_s is None:
                return await wait()
            if len(engine.tokens_s["s"]) == 5 and not joined:
                # Half of the wait is over.
                engine.now += most_s / 2
                joined.append((engine.now, asyncio.create_task(stream(subject, "new", tokens))))
                return await wait(1.0)
            engine.now += most_s
            return None

        monkeypatch.setattr(subject.wakeup, "wait", wait)
        engine.urgency = urgency
        await stream(subject, "s", 20)
        [(joined_s, newcomer)] = joined
        await newcomer
    assert engine.tokens_s["new"][0] == pytest.approx(joined_s + late_s + STEP_S)
    # The steps after it keep the interval again.
    itls = engine.itls(joined_s + late_s + STEP_S / 2)
    assert len(itls) > 10
    assert itls == pytest.approx([interval_s(urgency)] * len(itls))


async def test_as_many_share_a_step_as_keep_the_budget(monkeypatch):
    async with running(monkeypatch, 2.0, budget_s=0.06) as (subject, engine):

        async def most(name, step_s):
            """Of twenty that come at once."""
            engine.step_s, engine.tokens_s = step_s, {}
            await asyncio.gather(*(stream(subject, f"{name}{n}", 30) for n in range(20)))
            return max(Counter(chain(*engine.tokens_s.values())).values())

        assert await most("before", 0.07) == 20
        assert 8 <= await most("slow", 0.07) < 20
        assert await most("fast", STEP_S) == 20


async def test_a_stream_that_joins_ends_the_current_slice_with_its_layer(monkeypatch):
    async with running(monkeypatch, 2.0, engine=PausedEngine()) as (subject, engine):
        computed = asyncio.create_task(prompt(subject, "p", 300))
        await engine.pause_in_slice(1)
        assert not engine.cuts
        joined = asyncio.create_task(stream(subject, "s", 3))
        async with asyncio.timeout(20):
            while not engine.cuts:
                await asyncio.sleep(0)
        assert engine.cuts == 1
        engine.go_on()
        await asyncio.gather(computed, joined)


async def test_a_stream_that_joins_during_a_step_waits_for_a_layer_and_not_for_a_slice(monkeypatch):
    async with running(monkeypatch, None) as (subject, engine):
        first = asyncio.create_task(stream(subject, "s", 60))
        long = asyncio.create_task(prompt(subject, "p", 2048))
        while len(engine.slices) < 3:
            await asyncio.sleep(0)
        loop, there, joined = asyncio.get_running_loop(), threading.Event(), []
        commit, forward = subject.commit, engine.forward

        def tell(job):
            commit(job)
            there.set()

        def step(spans):
            if not joined:
                newcomer = asyncio.run_coroutine_threadsafe(stream(subject, "new", 3), loop)
                assert there.wait(5)
                joined.append((newcomer, engine.now, len(engine.slices)))
            return forward(spans)

        monkeypatch.setattr(subject, "commit", tell)
        monkeypatch.setattr(engine, "forward", step)
        await asyncio.gather(first, long)
        [(newcomer, since_s, slices)] = joined
        await asyncio.wrap_future(newcomer)
    assert engine.slices[slices : slices + 1] == [0.0]
    layer_s = (PASS_S + 512 / TOKENS_PER_S) / LAYERS
    assert engine.tokens_s["new"][0] - since_s <= 2 * STEP_S + layer_s + 1e-9


async def test_a_failed_step_spares_a_request_whose_text_ended_beside_it(monkeypatch):
    """Its stop string is found while the step goes on, and its last tokens are not yet read."""
    tokenizer = TOKENIZERS["byte_level"]
    async with running(monkeypatch, 2.0) as (subject, engine):
        forward = engine.forward

        def fail_second(spans):
            if len(engine.tokens_s.get("stopped", ())) == 1:
                engine.tokens_s.clear()
                raise RuntimeError("broke")
            return forward(spans)

        monkeypatch.setattr(engine, "forward", fail_second)
        job = new_job("stopped", 100, 20, local=False, stop=(tokenizer.decode([7]),))
        await committed(subject, job)
        with pytest.raises(Internal, match="a decode step failed"):
            await stream(subject, "beside", 20)
        await stream(subject, "later", 3)
        assert job.collect().finish_reason == "stop"
        await job.drained


async def test_the_preemptions_of_a_cancelled_request_are_counted_once(monkeypatch):
    with recorded() as page:
        async with running(monkeypatch, 2.0, blocks=15) as (subject, engine):
            old = await committed(subject, new_job("old", 100, 100, local=False))
            new = await committed(subject, new_job("new", 100, 100, local=False))
            await eventually(lambda: len(engine.tokens_s.get("old", ())) > 30)
            for job in (new, old, new):
                subject.release(job)
        assert (old.preemptions, new.preemptions) == (0, 1)
        assert page.value("tandem_decode_preemptions_total") == 1


@pytest.mark.parametrize("max_tokens", [4, 20], ids=["last", "within"])
async def test_a_request_whose_text_fails_ends_alone(monkeypatch, caplog, max_tokens):
    async with running(monkeypatch, 2.0) as (subject, engine):
        job = new_job("broken", 100, max_tokens, local=False, text=BrokenText)
        await committed(subject, job)
        beside = asyncio.create_task(stream(subject, "beside", 20))
        with pytest.raises(Internal, match="text of the answer"):
            await finish(subject, job)
        await beside
        await stream(subject, "later", 3)
        assert len(engine.tokens_s["beside"]) == 19 and len(engine.tokens_s["broken"]) <= 4
        assert [one.message for one in caplog.records].count("no text for a token") == 1


async def test_a_step_that_fails_beside_a_text_that_fails_ends_no_loop(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, engine):
        forward = engine.forward

        def fail_fourth(spans):
            if len(engine.tokens_s.get("broken", ())) == 3:
                engine.tokens_s.clear()
                raise RuntimeError("broke")
            return forward(spans)

        monkeypatch.setattr(engine, "forward", fail_fourth)
        job = new_job("broken", 100, 20, local=False, text=BrokenText)
        await committed(subject, job)
        with pytest.raises(Internal):
            await finish(subject, job)
        await stream(subject, "later", 3)


async def test_a_pass_that_cannot_begin_fails_with_its_requests_alone(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, engine):
        begin = engine.begin

        def fail_once(spans, stored=None):
            monkeypatch.setattr(engine, "begin", begin)
            raise RuntimeError("broke")

        monkeypatch.setattr(engine, "begin", fail_once)
        with pytest.raises(Internal, match="a decode step failed"):
            await prompt(subject, "p", 100)
        await prompt(subject, "later", 100)
