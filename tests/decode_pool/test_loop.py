"""The decode loop over an engine on paper, in simulated time: what streams and prompts get."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager
from itertools import chain, pairwise
from statistics import quantiles

import pytest

from decode_pool import loop as loop_module
from decode_pool.batch_size import BatchSize
from decode_pool.batching import Formed
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from decode_pool.shared_cores import StepInterval
from engine.kv.block_pool import BlockPool
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken, Sequence
from engine.types.urgency import Urgency
from tests.engine.text.test_completion import TOKENIZERS
from tests.paused_engine import LAYERS as LAYERS_PAUSED
from tests.paused_engine import PausedEngine

STEP_S, PASS_S, TOKENS_PER_S, LAYERS = 0.012, 0.006, 2500.0, 30


class PaperPass:
    """A pass through the layers, each of which takes its time."""

    def __init__(self, engine, spans):
        self.spans = spans
        self._engine = engine
        self._layer_s = (PASS_S + sum(s.count for s in spans) / TOKENS_PER_S) / LAYERS
        self._left = LAYERS

    def advance(self, for_s=None):
        self._engine.slices.append(for_s)
        end = self._engine.now + for_s
        while self._left:
            self._engine.now += self._layer_s
            self._left -= 1
            if self._left and self._engine.now + self._layer_s > end:
                return None
        return [SampledToken(7) if span.samples else None for span in self.spans]

    def cut(self):
        """Nothing: a slice on paper is over at once."""

    def halt(self):
        self._left = 0


class PaperEngine:
    """Steps that take `step_s`; notes when each owner got a token."""

    def __init__(self):
        self.now = 0.0
        self.step_s = STEP_S
        self.slices = []
        self.yields = 0
        self.tokens_s = {}

    urgency = Urgency.NONE
    shared_cores = "host"

    def yield_cores(self):
        self.yields += 1

    def forward(self, spans):
        self.now += self.step_s
        for span in spans:
            self.tokens_s.setdefault(span.sequence.owner, []).append(self.now)
        return [SampledToken(7) for _ in spans]

    def begin(self, spans, stored=None):
        return PaperPass(self, spans)

    def monotonic(self):
        return self.now

    def itls(self, since_s=0.0):
        times = self.tokens_s.values()
        return [b - a for seen in times for a, b in pairwise(seen) if a >= since_s]


@asynccontextmanager
async def running(monkeypatch, factor, budget_s=0.06, engine=None, batching=None):
    """Over an engine on paper, whose time is the loop's, unless another is given."""
    engine = engine or PaperEngine()
    if isinstance(engine, PaperEngine):
        monkeypatch.setattr(loop_module, "time", engine)
    scheduler = DecodeScheduler(
        BlockPool(10_000),
        PromptOrder(512),
        BatchSize(64, budget_s),
        block_size=16,
        max_waiting=100,
        chunk_tokens=512,
        batching=batching,
    )
    worker = EngineWorker(engine)
    subject = DecodeLoop(scheduler, worker, 100, ItlBudget(budget_s, factor))
    task = asyncio.create_task(subject.run())
    yield subject, engine
    if isinstance(engine, PausedEngine):
        engine.go_on()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    worker.close()


def new_job(owner, prompt, max_tokens, local, output=0):
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    completion = ChoiceText(tokenizer, [1], sampling, tokenizer.eos_ids, 10_000)
    sequence = Sequence(owner, [1] * (prompt + output), prompt, sampling)
    return DecodeJob(sequence, completion, local=local)


async def stream(subject, owner, max_tokens):
    """A request whose KV came from elsewhere, to its end."""
    job = new_job(owner, 100, max_tokens, local=False)
    subject.register(job)
    job.take_first(5)
    await subject.admit(job)
    subject.commit(job)
    await finish(subject, job)


async def prompt(subject, owner, tokens, max_tokens=2, urgency=Urgency.PROMPTS):
    """A request whose prompt is computed here, to its end."""
    job = new_job(owner, tokens, max_tokens, local=True)
    job.sequence.urgency = urgency
    subject.register(job)
    try:
        await subject.admit(job)
        await finish(subject, job)
    finally:
        subject.release(job)


async def finish(subject, job):
    job.listen(lambda due_s: job.collect())
    await asyncio.wait_for(job.drained, 20)
    subject.release(job)


def interval_s(urgency, step_s=STEP_S):
    """From one step to the next beside other engines' prompts of that urgency."""
    itl = ItlBudget(0.06, 2.0)
    itl.stepped(step_s)
    return step_s + StepInterval(itl).wait_s(step_s, urgency)


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
