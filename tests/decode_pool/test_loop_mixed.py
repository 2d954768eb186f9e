"""Prompts beside streams on a fast engine: passes that follow each other, and mixed passes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import Internal
from engine.types.sequence import SampledToken
from tests.decode_pool.paper_loop import (
    PaperEngine,
    committed,
    finish,
    new_job,
    prompt,
    running,
    stream,
)

BUDGET_S = 0.06
STEP_S, PASS_S, LAYERS = 0.006, 0.002, 20


@dataclass
class FastPass:
    """A pass through layers that are quick beside the budget."""

    engine: object
    spans: list
    left: int = LAYERS

    def advance(self, for_s=None):
        end_s = self.engine.now + for_s
        layer_s = self.engine.pass_s(self.spans) / LAYERS
        while self.left:
            self.engine.now += layer_s
            self.left -= 1
            if self.left and self.engine.now + layer_s > end_s:
                return None
        self.engine.passes.append([span.sequence.owner for span in self.spans])
        return self.engine.results(self.spans)

    def cut(self):
        """Nothing: a slice on paper is over at once."""

    def halt(self):
        self.left = 0


class FastEngine(PaperEngine):
    """Notes each pass and step with its owners, and the time of each token of each owner."""

    shared_cores = ""

    def __init__(self, tokens_per_s=50_000.0):
        super().__init__()
        self.tokens_per_s = tokens_per_s
        self.passes, self.steps, self.spans = [], [], []
        self.fails = False

    def pass_s(self, spans):
        return PASS_S + sum(span.count for span in spans) / self.tokens_per_s

    def forward(self, spans):
        if self.fails:
            raise RuntimeError("no device")
        self.now += STEP_S if all(s.count == 1 for s in spans) else self.pass_s(spans)
        self.steps.append([span.sequence.owner for span in spans])
        return self.results(spans)

    def begin(self, spans, stored=None):
        return FastPass(self, spans)

    def results(self, spans):
        self.spans += spans
        for span in spans:
            if span.samples:
                self.tokens_s.setdefault(span.sequence.owner, []).append(self.now)
        return [SampledToken(7) if span.samples else None for span in spans]

    def mixed(self):
        return [owners for owners in self.steps if {owner[0] for owner in owners} == {"p", "s"}]


async def until(engine, seconds):
    while engine.now < seconds:
        await asyncio.sleep(0)


@pytest.mark.parametrize("mixes", [False, True])
async def test_prompts_beside_streams_keep_the_budget_and_use_it(monkeypatch, mixes):
    """Forty prompts of 300 tokens, of 8 ms each."""
    engine = FastEngine()
    async with running(monkeypatch, None, BUDGET_S, engine, mixes=mixes) as (subject, _):
        await prompt(subject, "first", 512, max_tokens=1)
        streams = [asyncio.create_task(stream(subject, f"s{n}", 150)) for n in range(4)]
        await until(engine, 0.1)
        began_s, before = engine.now, len(engine.steps)
        await asyncio.gather(*(prompt(subject, f"p{n}", 300, max_tokens=1) for n in range(40)))
        assert max(engine.itls(began_s)) <= BUDGET_S
        took_s, steps = engine.now - began_s, len(engine.steps) - before
        # A pass has 512 tokens. Between passes in turn there would be as many steps.
        assert took_s < 0.8 * 40 * (STEP_S + PASS_S + 300 / engine.tokens_per_s)
        assert steps <= (30 if mixes else 15)
        assert bool(engine.mixed()) == mixes
        assert subject.pass_ends.count == len(engine.passes) + len(engine.mixed())
        assert not mixes or engine.passes == [["first"]]
        await asyncio.gather(*streams)


async def test_a_mixed_pass_costs_no_step(monkeypatch):
    took_s = {}
    for mixes in (False, True):
        engine = FastEngine()
        async with running(monkeypatch, None, BUDGET_S, engine, mixes=mixes) as (subject, _):
            await prompt(subject, "first", 512, max_tokens=1)
            streaming = asyncio.create_task(stream(subject, "s", 150))
            await until(engine, 0.1)
            began_s = engine.now
            await asyncio.gather(*(prompt(subject, f"p{n}", 512, max_tokens=1) for n in range(20)))
            took_s[mixes] = engine.now - began_s
            await streaming
    assert took_s[True] < took_s[False]


async def test_a_short_prompt_goes_before_the_rest_of_a_long_one(monkeypatch):
    engine, ended = FastEngine(10_000.0), []

    async def ending(subject, owner, tokens):
        await prompt(subject, owner, tokens)
        ended.append(owner)

    async with running(monkeypatch, None, BUDGET_S, engine, mixes=True) as (subject, _):
        await prompt(subject, "first", 512, max_tokens=1)
        streaming = asyncio.create_task(stream(subject, "s", 200))
        await until(engine, 0.1)
        long = asyncio.create_task(ending(subject, "plong", 4096))
        while not engine.mixed():
            await asyncio.sleep(0)
        await ending(subject, "pshort", 64)
        await asyncio.gather(long, streaming)
    assert ended == ["pshort", "plong"]


async def test_a_cancelled_prompt_of_a_mixed_pass_keeps_its_blocks_to_the_end_of_it(monkeypatch):
    engine = FastEngine(10_000.0)
    async with running(monkeypatch, None, BUDGET_S, engine, mixes=True) as (subject, _):
        await prompt(subject, "first", 512, max_tokens=1)
        streaming = asyncio.create_task(stream(subject, "s", 60))
        await until(engine, 0.1)
        job = new_job("pgone", 4096, 2, local=True)
        subject.register(job)
        await subject.admit(job)
        while not engine.mixed():
            await asyncio.sleep(0)
        subject.release(job)
        await asyncio.wait_for(subject.vacated(job), 5)
        await streaming
        assert len(engine.tokens_s["s"]) == 59


async def test_a_failed_mixed_pass_fails_its_requests_alone(monkeypatch):
    engine = FastEngine()
    async with running(monkeypatch, None, BUDGET_S, engine, mixes=True) as (subject, _):
        await prompt(subject, "first", 512, max_tokens=1)
        job = await committed(subject, new_job("s", 100, 500, local=False))
        await until(engine, 0.1)
        engine.fails = True
        waiting = new_job("p", 300, 2, local=True)
        subject.register(waiting)
        await subject.admit(waiting)
        for one in (job, waiting):
            with pytest.raises(Internal, match="a decode step failed"):
                await finish(subject, one)
            subject.release(one)
        engine.fails = False
        await prompt(subject, "after", 64)
        assert subject.blocks_promised == 0


async def test_a_request_counts_the_steps_behind_its_prompt(monkeypatch):
    engine = FastEngine()
    async with running(monkeypatch, None, BUDGET_S, engine, mixes=True) as (subject, _):
        await prompt(subject, "first", 512, max_tokens=1)
        streaming = asyncio.create_task(stream(subject, "s", 200))
        await until(engine, 0.1)
        job = new_job("p", 300, 9, local=True)
        subject.register(job)
        await subject.admit(job)
        await finish(subject, job)
        assert any("p" in owners for owners in engine.mixed())
        assert job.steps.steps == 8
        assert job.steps.mean_batch == 2
        await streaming


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    streams=st.integers(1, 6),
    blocks=st.integers(300, 2000),
    mixes=st.booleans(),
    gone=st.sets(st.integers(0, 7)),
)
def test_every_request_gets_all_of_its_tokens_within_the_budget(
    monkeypatch, lengths, streams, blocks, mixes, gone
):
    async def serve():
        engine = FastEngine()
        async with running(monkeypatch, None, BUDGET_S, engine, blocks=blocks, mixes=mixes) as (
            subject,
            _,
        ):
            await prompt(subject, "first", 512, max_tokens=1)
            going = [asyncio.create_task(stream(subject, f"s{n}", 120)) for n in range(streams)]
            await until(engine, 0.1)
            began_s = engine.now
            coming = [
                asyncio.create_task(prompt(subject, f"p{n}", length, max_tokens=30))
                for n, length in enumerate(lengths)
            ]
            await until(engine, began_s + 0.05)
            for number in gone:
                if number < len(coming):
                    coming[number].cancel()
            await asyncio.gather(*coming, return_exceptions=True)
            await asyncio.gather(*going)
            for number in range(streams):
                assert len(engine.tokens_s[f"s{number}"]) == 119
            for number in range(len(lengths)):
                if number not in gone:
                    assert len(engine.tokens_s[f"p{number}"]) == 30
            # A stream that is preempted stands still until it is computed again.
            most = sum(length + 50 for length in lengths) + 250 * streams
            assert most > 16 * blocks or max(engine.itls(began_s)) <= BUDGET_S + 1e-9
            assert subject.blocks_promised == 0

    with monkeypatch.context():
        asyncio.run(serve())
