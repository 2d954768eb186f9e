"""What a request's servicer is given, and when."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from decode_pool import job as job_module
from decode_pool.job import NOW, DecodeJob, Flush
from engine.errors import Internal
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken, Sequence
from tests.engine.text.test_completion import TOKENIZERS

NEVER = 3600.0


class Listener:
    """Notes when the job says that something is due."""

    def __init__(self, job):
        self.due = []
        job.listen(lambda due: self.due.append(due))

    @property
    def now(self):
        """Whether something is due at once, since last asked."""
        due, self.due = self.due, []
        return NOW in due


def new_job(max_tokens=50, stop=(), **flush):
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=max_tokens, stop=stop, ignore_eos=True)
    completion = ChoiceText(tokenizer, [1], sampling, tokenizer.eos_ids, 1000)
    job = DecodeJob(Sequence("a", [1], 1, sampling), completion, flush=Flush(**flush))
    job.take_first(5)
    job.granted.set_result(None)
    return job


def sample(job, *tokens):
    for token in tokens:
        job.take(SampledToken(token))
        job.read()


def ids(job):
    emission = job.collect()
    return emission.index, [token.token for token in emission.tokens]


async def test_the_first_token_here_is_sent_at_once_and_the_next_ones_are_kept_back():
    job = new_job(seconds=NEVER, tokens=3)
    listener = Listener(job)
    sample(job, 6)
    assert listener.now
    assert ids(job) == (1, [6])
    sample(job, 7, 8)
    (due,) = listener.due
    assert due > time.monotonic() + NEVER - 60
    sample(job, 9)
    assert listener.now
    assert ids(job) == (2, [7, 8, 9])
    assert job.collect() is None


async def test_a_token_long_after_the_last_sent_one_is_sent_at_once(monkeypatch):
    now = 100.0
    monkeypatch.setattr(job_module, "time", SimpleNamespace(monotonic=lambda: now))
    job = new_job(seconds=0.04, tokens=3)
    listener = Listener(job)
    sample(job, 6)
    assert listener.now
    ids(job)
    now += 0.03
    sample(job, 7)
    assert listener.due == [now + 0.04]
    ids(job)
    now += 0.05
    listener.due.clear()
    sample(job, 8)
    assert listener.due == [NOW]


async def test_tokens_sent_by_another_replica_are_not_sent_again():
    tokenizer, sent = TOKENIZERS["byte_level"], [5, 6, 7]
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)

    def job(output):
        completion = ChoiceText(tokenizer, [1], sampling, tokenizer.eos_ids, 1000)
        return DecodeJob(Sequence("a", [1, *output], 1, sampling), completion, local=True)

    whole, rest = job([]), job(sent)
    assert not whole.failed_over and rest.failed_over
    sample(whole, *sent)
    whole.collect()
    for one in (whole, rest):
        sample(one, 8, 9)
    assert rest.collect() == whole.collect()
    await rest.drained


async def test_a_late_listener_is_called_for_earlier_tokens():
    job = new_job()
    sample(job, 6, 7)
    assert Listener(job).now
    assert ids(job) == (1, [6, 7])


async def test_without_a_flush_each_token_is_due_at_once():
    job = new_job()
    listener = Listener(job)
    for place, token in enumerate((6, 7, 8), 1):
        sample(job, token)
        assert listener.now
        assert ids(job) == (place, [token])


async def test_the_end_is_sent_at_once():
    job = new_job(max_tokens=4, seconds=NEVER, tokens=100)
    listener = Listener(job)
    sample(job, 6)
    ids(job)
    assert listener.now
    sample(job, 7)
    assert not listener.now
    assert not job.drained.done()
    job.take(SampledToken(8))
    assert job.finished
    assert not listener.now  # its text is still to come
    job.read()
    assert listener.now
    assert ids(job) == (2, [7, 8])
    await job.drained


async def test_an_error_is_sent_at_once_and_after_the_tokens():
    job = new_job(seconds=NEVER, tokens=100)
    listener = Listener(job)
    sample(job, 6)
    ids(job)
    assert listener.now
    sample(job, 7)
    assert not listener.now
    job.fail(Internal("broke"))
    assert listener.now
    assert not job.drained.done()
    assert ids(job) == (2, [7])
    with pytest.raises(Internal, match="broke"):
        await job.drained


async def test_an_error_without_tokens_ends_at_once():
    job = new_job()
    job.fail(Internal("broke"))
    with pytest.raises(Internal, match="broke"):
        await job.drained


async def test_after_its_end_a_job_tells_of_no_token():
    """The text of a step may come when the call of the request has ended."""
    job = new_job()
    listener = Listener(job)
    job.take(SampledToken(6))
    job.cancel()
    job.read()
    job.fail(Internal("broke"))
    assert not listener.due
