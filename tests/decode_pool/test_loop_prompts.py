"""What prompts get from a decode loop in simulated time: slices, their order, and cancels."""

from __future__ import annotations

import asyncio
from statistics import quantiles

import pytest

from decode_pool.batching import Formed
from engine.types.urgency import Urgency
from tests.decode_pool.paper_loop import (
    PASS_S,
    STEP_S,
    TOKENS_PER_S,
    finish,
    new_job,
    prompt,
    running,
    stream,
)
from tests.paused_engine import LAYERS as LAYERS_PAUSED
from tests.paused_engine import PausedEngine


@pytest.mark.parametrize("urgency", [Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT])
async def test_the_length_of_slices_follows_the_urgency_of_their_prompts(monkeypatch, urgency):
    async with running(monkeypatch, 2.0) as (subject, engine):
        streaming = asyncio.create_task(stream(subject, "s", 100))
        while engine.now < 0.3:
            await asyncio.sleep(0)
        engine.slices.clear()
        slice_s = subject.itl.slice_s(urgency)
        await prompt(subject, "p", 1024, urgency=urgency)
        assert max(engine.slices) == pytest.approx(slice_s)
        await streaming


async def test_a_stream_that_stands_still_is_computed_within_the_whole_itl_budget(monkeypatch):
    """Beside steps of 12 ms it gets 48 ms, and not 12 ms as a prompt would."""
    async with running(monkeypatch, 2.0) as (subject, engine):
        streaming = asyncio.create_task(stream(subject, "s", 100))
        while engine.now < 0.3:
            await asyncio.sleep(0)
        engine.slices.clear()
        began_s = engine.now
        moved = new_job("m", 1000, 30, local=True, output=24)
        subject.register(moved)
        await subject.admit(moved)
        await finish(subject, moved)
        assert max(engine.slices) == pytest.approx(0.06 - STEP_S)
        assert max(engine.itls(began_s)) <= 0.06 + 1e-9
        await streaming


@pytest.mark.parametrize(("factor", "most_s"), [(2.0, 2 * STEP_S), (None, 0.06), (1.0, 0.0191)])
async def test_four_long_prompts_beside_four_streams_keep_the_itl(monkeypatch, factor, most_s):
    async with running(monkeypatch, factor) as (subject, engine):
        streams = [asyncio.create_task(stream(subject, f"s{n}", 200)) for n in range(4)]
        while engine.now < 0.5:
            await asyncio.sleep(0)
        undisturbed = quantiles(engine.itls(), n=20)[-1]
        assert undisturbed == pytest.approx(STEP_S)
        began_s = engine.now
        await asyncio.gather(*(prompt(subject, f"p{n}", 1024) for n in range(4)))
        itls = engine.itls(began_s)
        took_s = engine.now - began_s
        assert quantiles(itls, n=20)[-1] <= most_s + 1e-9
        # All that the steps leave is the prompts', but for what is less than a layer.
        busy_s = 8 * (PASS_S + 512 / TOKENS_PER_S)
        share = 1 - STEP_S / most_s
        assert took_s <= busy_s / (0.9 * share)
        await asyncio.gather(*streams)


async def test_a_short_prompt_overtakes_a_long_one_and_streams_go_on(monkeypatch):
    ended = []

    async def ending(subject, owner, tokens):
        await prompt(subject, owner, tokens)
        ended.append(owner)

    async with running(monkeypatch, 2.0) as (subject, engine):
        running_stream = asyncio.create_task(stream(subject, "s", 100))
        long = asyncio.create_task(ending(subject, "long", 2048))
        while len(engine.slices) < 3:
            await asyncio.sleep(0)
        await ending(subject, "short", 64)
        await asyncio.gather(long, running_stream)
    assert ended == ["short", "long"]


async def test_cancelled_prompts_delay_no_other(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, engine):
        await prompt(subject, "before", 64, max_tokens=1)
        gone = [asyncio.create_task(prompt(subject, f"gone{n}", 1024)) for n in range(10)]
        while len(engine.slices) < 4:
            await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        began_s = engine.now
        # Too long to overtake what is under way.
        next_one = asyncio.create_task(prompt(subject, "next", 400, max_tokens=1))
        await asyncio.gather(*gone, return_exceptions=True)
        await next_one
        # A slice is under way when they go, and another may begin before that is known.
        assert (
            engine.now - began_s <= PASS_S + 400 / TOKENS_PER_S + 2 * subject.itl.slice_s() + 1e-9
        )


@pytest.mark.parametrize("slices", [0, 1, LAYERS_PAUSED, 2 * LAYERS_PAUSED + 1])
async def test_not_a_slice_of_ten_cancelled_prompts_is_computed_before_a_short_one(
    monkeypatch, slices
):
    """They go while a slice is under way, whichever; the next one is the short prompt's."""
    async with running(monkeypatch, 2.0, engine=PausedEngine()) as (subject, engine):
        gone = [asyncio.create_task(prompt(subject, f"gone{n}", 1500)) for n in range(10)]
        await engine.pause_in_slice(slices)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        short = asyncio.create_task(prompt(subject, "short", 32, max_tokens=1))
        await asyncio.sleep(0)
        engine.go_on()
        await short
        assert engine.slices[slices + 1 :] == [["short"]] * LAYERS_PAUSED


async def test_a_window_ends_by_itself_where_nothing_else_comes(monkeypatch):
    async with running(monkeypatch, 2.0, engine=PausedEngine(), batching=Formed(0.05)) as (
        subject,
        engine,
    ):
        engine.go_on()
        await asyncio.gather(*(prompt(subject, f"p{n}", 40, max_tokens=3) for n in range(3)))
        await stream(subject, "s", 5)


async def test_without_streams_prompts_have_the_engine_to_themselves(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, engine):
        await prompt(subject, "p", 1024, max_tokens=1)
        assert engine.now == pytest.approx(2 * (PASS_S + 512 / TOKENS_PER_S))
        assert max(engine.slices) == pytest.approx(subject.itl.slice_s())
