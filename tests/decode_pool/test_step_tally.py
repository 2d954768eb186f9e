"""What is counted of decode steps for each request in them, and of tokens computed twice."""

from __future__ import annotations

import asyncio

import pytest

from decode_pool.step_tally import StepTally
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.decode_pool.paper_loop import STEP_S, committed, finish, new_job, running, stream
from tests.metrics_page import recorded

RECOMPUTED = "tandem_decode_recomputed_tokens_total"


class Counts:
    """The part of a job that the tally writes."""

    straggler_steps = 0


def span(owner: str, start: int) -> Span:
    return Span(Sequence(owner, [1] * (start + 1), 1, SamplingParams()), start, 1)


def test_the_seconds_of_a_step_are_shared_and_the_longest_request_is_its_straggler():
    tally, jobs = StepTally(), {"a": Counts(), "b": Counts()}
    before = tally.stepped([span("a", 10)], jobs, 0.1)
    assert (before.steps, before.mean_batch) == (0, 0)
    begun = tally.count
    tally.stepped([span("a", 11), span("b", 40)], jobs, 0.2)
    tally.stepped([span("a", 12), span("b", 41)], jobs, 0.2)
    own = tally.count.since(begun)
    assert (own.steps, own.mean_batch) == (2, 2)
    assert (own.seconds, own.share_s) == (pytest.approx(0.4), pytest.approx(0.2))
    assert tally.count.share_s == pytest.approx(0.3)
    assert (jobs["a"].straggler_steps, jobs["b"].straggler_steps) == (0, 2)


async def test_a_request_knows_its_own_steps(monkeypatch):
    async with running(monkeypatch, 2.0) as (subject, _):
        await stream(subject, "before", 10)
        job = await committed(subject, new_job("own", 100, 6, local=False))
        await finish(subject, job)
    # The first of its tokens came from elsewhere.
    assert (job.steps.steps, job.steps.mean_batch) == (5, 1)
    assert job.steps.seconds == pytest.approx(5 * STEP_S)
    assert job.straggler_steps == 0


async def test_what_was_handed_over_is_not_computed_again_and_a_counter_would_tell(monkeypatch):
    with recorded() as page:
        async with running(monkeypatch, 2.0) as (subject, _):
            await asyncio.gather(*(stream(subject, f"s{n}", 5) for n in range(3)))
            assert page.value(RECOMPUTED) == 0
            job = new_job("lost", 100, 5, local=False)
            subject.register(job)
            job.take_first(5)
            await subject.admit(job)
            subject.commit(job)
            job.sequence.computed = 0  # as if decode did not trust what it was given
            await finish(subject, job)
    assert job.recomputed_tokens == 101
    assert page.value(RECOMPUTED, reason="handed_over") == 101
