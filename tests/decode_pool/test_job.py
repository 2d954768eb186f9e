"""What a request's servicer is given, and when."""

from __future__ import annotations

import asyncio

import pytest

from decode_pool.job import DecodeJob, Flush
from engine.errors import Internal
from engine.sampling import SamplingParams
from engine.sequence import SampledToken, Sequence
from engine.text import Completion
from tests.engine.test_text import TOKENIZERS

NEVER = 3600.0


def new_job(max_tokens=50, stop=(), **flush):
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=max_tokens, stop=stop, ignore_eos=True)
    completion = Completion(tokenizer, [1], sampling, tokenizer.eos_ids, 1000)
    job = DecodeJob(Sequence("a", [1], 1, sampling), completion, flush=Flush(**flush))
    job.take_first(5)
    job.granted.set_result(None)
    return job


def sample(job, *tokens):
    for token in tokens:
        job.take(SampledToken(token))
        job.read()


async def ids(job):
    emission = await asyncio.wait_for(job.next(), 5)
    return emission.index, [token.token for token in emission.tokens]


async def test_the_first_token_here_is_never_held_and_the_next_ones_wait():
    job = new_job(seconds=NEVER, tokens=3)
    sample(job, 6)
    assert await ids(job) == (1, [6])
    waiting = asyncio.create_task(ids(job))
    sample(job, 7, 8)
    await asyncio.sleep(0)
    assert not waiting.done()
    sample(job, 9)
    assert await waiting == (2, [7, 8, 9])


async def test_held_tokens_come_when_their_time_is_over():
    job = new_job(seconds=0.02, tokens=100)
    sample(job, 6)
    await ids(job)
    sample(job, 7, 8)
    assert await ids(job) == (2, [7, 8])


async def test_without_a_flush_each_token_comes_by_itself():
    job = new_job()
    for place, token in enumerate((6, 7, 8), 1):
        sample(job, token)
        assert await ids(job) == (place, [token])


async def test_the_end_is_never_held():
    job = new_job(max_tokens=4, seconds=NEVER, tokens=100)
    sample(job, 6)
    await ids(job)
    sample(job, 7)
    assert not job.drained
    job.take(SampledToken(8))
    assert job.finished
    assert not job.drained  # its text is still to come
    job.read()
    assert await ids(job) == (2, [7, 8])
    assert job.drained


async def test_an_error_is_not_held_and_comes_after_the_tokens():
    job = new_job(seconds=NEVER, tokens=100)
    sample(job, 6)
    await ids(job)
    sample(job, 7)
    job.fail(Internal("broke"))
    assert await ids(job) == (2, [7])
    with pytest.raises(Internal, match="broke"):
        await ids(job)
