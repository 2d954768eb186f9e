"""The decode loop over an engine that launches: the next step goes before the results are read."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_pool.job import DecodeJob
from engine.errors import Internal
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken, Sequence
from tests.decode_pool.paper_loop import committed, finish, new_job, prompt, running
from tests.engine.text.test_completion import TOKENIZERS
from tests.paused_engine import PausedEngine

STOP = TOKENIZERS["byte_level"].decode([9])


class LaunchedStep:
    def __init__(self, engine, spans):
        self._engine = engine
        self._owners = [span.sequence.owner for span in spans]
        # The sampled token is the one behind the span's.
        self._lengths = [span.start + 1 - span.sequence.prompt_tokens for span in spans]

    def read(self):
        self._engine.events.append(("read", self._owners))
        rows = zip(self._owners, self._lengths, strict=True)
        return [self._engine.results.get(row, SampledToken(7)) for row in rows]


class LaunchingEngine(PausedEngine):
    """Gives token 7, or what `results` has for an owner and the number of its output tokens."""

    rows_ahead = 8

    def __init__(self):
        super().__init__()
        self.events, self.results, self.fails_at, self.cleared = [], {}, None, []

    def launch(self, spans):
        self.events.append(("launch", [span.sequence.owner for span in spans]))
        if self.fails_at == len(self.launches()):
            raise RuntimeError("no device")
        return LaunchedStep(self, spans)

    def clear(self, blocks):
        self.cleared += blocks

    def launches(self, owner=None):
        return [rows for kind, rows in self.events if kind == "launch" and owner in (None, *rows)]

    def kinds(self):
        return [kind for kind, _ in self.events]


@pytest.fixture
async def subject(monkeypatch):
    async with running(monkeypatch, None, engine=LaunchingEngine()) as (loop, engine):
        yield loop, engine
        await settled(loop)


async def settled(loop):
    """No request is left."""
    async with asyncio.timeout(5):
        while loop.blocks_promised:
            await asyncio.sleep(0)


async def outputs(loop, job):
    found = []
    job.listen(lambda due_s: found.extend(job.collect().tokens))
    try:
        await asyncio.wait_for(job.drained, 5)
    finally:
        loop.release(job)
    return [token.token for token in found]


async def test_a_step_is_launched_before_the_step_before_it_is_read(subject):
    loop, engine = subject
    job = await committed(loop, new_job("a", 10, 6, local=False))
    assert await outputs(loop, job) == [7] * 5
    launch, read = "launch", "read"
    assert engine.kinds() == [launch, *[launch, read] * 4, read]
    assert len(engine.launches("a")) == 5, "no step in vain: the end by length is foreseen"


def job_with_stop_token(token):
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=50, stop_token_ids=(token,))
    completion = ChoiceText(tokenizer, [1], sampling, tokenizer.eos_ids, 10_000)
    return DecodeJob(Sequence("a", [1] * 10, 10, sampling), completion)


@pytest.mark.parametrize("how", ["stop_token", "stop_string", "fault"])
async def test_a_stop_costs_one_row_at_most(subject, how):
    loop, engine = subject
    job = new_job("a", 10, 50, local=False, stop=(STOP,) if how == "stop_string" else ())
    if how == "stop_token":
        job = job_with_stop_token(9)
    engine.results["a", 4] = Internal("NaN") if how == "fault" else SampledToken(9)
    other = await committed(loop, new_job("b", 10, 12, local=False))
    await committed(loop, job)
    if how == "fault":
        with pytest.raises(Internal, match="NaN"):
            await outputs(loop, job)
    else:
        assert (await outputs(loop, job))[:3] == [7] * 3
    assert await outputs(loop, other) == [7] * 11
    assert bool(engine.cleared) == (how == "fault")
    # Output token 0 came with the request, and token 4 ends it.
    assert len(engine.launches("a")) <= 4 + 1


async def test_a_cancelled_request_keeps_its_blocks_until_both_steps_have_ended(subject):
    loop, engine = subject
    other = await committed(loop, new_job("b", 10, 30, local=False))
    gone = await committed(loop, new_job("a", 10, 10_000, local=False))
    while len(engine.launches("a")) < 3:
        await asyncio.sleep(0)
    loop.release(gone)
    launched = len(engine.launches("a"))
    await asyncio.wait_for(loop.vacated(gone), 5)
    assert await outputs(loop, other) == [7] * 29
    assert len(engine.launches("a")) <= launched + 1


async def test_a_failed_launch_fails_its_requests_alone(subject):
    loop, engine = subject
    engine.fails_at = 3
    job = await committed(loop, new_job("a", 10, 20, local=False))
    with pytest.raises(Internal, match="a decode step failed"):
        await outputs(loop, job)
    job = await committed(loop, new_job("b", 10, 4, local=False))
    assert await outputs(loop, job) == [7] * 3


async def test_a_prompt_is_computed_beside_steps_in_turn(subject):
    loop, engine = subject
    engine.go_on()
    stream = await committed(loop, new_job("stream", 10, 40, local=False))
    await prompt(loop, "prompt", 20)
    assert engine.slices
    assert await outputs(loop, stream) == [7] * 39


class AnyMatcher:
    """The state of some grammar."""

    def accepts(self, text):
        return True

    def follow(self, tokens, start):
        pass


async def test_a_request_with_a_grammar_is_stepped_in_turn(subject):
    loop, engine = subject
    job = new_job("a", 10, 5, local=False)
    job.sequence.matcher = AnyMatcher()
    await finish(loop, await committed(loop, job))
    assert engine.events == []


async def test_a_request_with_penalties_is_launched_ahead(subject):
    loop, engine = subject
    job = new_job("a", 10, 5, local=False)
    job.sequence.sampling = replace(job.sequence.sampling, presence_penalty=0.5)
    await finish(loop, await committed(loop, job))
    assert engine.events


async def test_an_engine_on_a_cpu_launches_nothing(monkeypatch):
    engine = LaunchingEngine()
    engine.rows_ahead = 0
    async with running(monkeypatch, None, engine=engine) as (loop, _):
        job = await committed(loop, new_job("a", 10, 5, local=False))
        assert await outputs(loop, job) == [7] * 4
        assert engine.events == []
