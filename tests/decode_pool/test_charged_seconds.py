"""The seconds that requests are charged with are never more than the replica computed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decode_pool.paper_loop import STEP_S, committed, finish, new_job, running


def steps(engine):
    """The steps that it computed."""
    return len({at_s for tokens in engine.tokens_s.values() for at_s in tokens})


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    streams=st.lists(st.tuples(st.integers(1, 300), st.integers(2, 60)), max_size=4),
    prompts=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), max_size=4),
    blocks=st.sampled_from([40, 10_000]),
    mixes=st.booleans(),
)
def test_the_sum_over_all_requests_is_at_most_the_time_that_passed(
    monkeypatch, streams, prompts, blocks, mixes
):
    async def serve():
        async with running(monkeypatch, 2.0, blocks=blocks, mixes=mixes) as (subject, engine):
            there = [new_job(f"s{n}", *sizes, local=False) for n, sizes in enumerate(streams)]
            here = [new_job(f"p{n}", *sizes, local=True) for n, sizes in enumerate(prompts)]

            async def stream(job):
                await finish(subject, await committed(subject, job))

            async def computed_here(job):
                subject.register(job)
                await subject.admit(job)
                await finish(subject, job)

            await asyncio.gather(*map(stream, there), *map(computed_here, here))
            steps_s = sum(job.steps.share_s for job in (*there, *here))
            prompts_s = sum(job.sequence.pass_s for job in here)
            assert steps_s + prompts_s <= engine.now + 1e-9
            # Each step is shared among the requests in it, and by no other one.
            assert steps_s == pytest.approx(STEP_S * steps(engine))

    asyncio.run(serve())


async def test_a_request_that_lost_its_blocks_is_not_charged_for_steps_without_it(monkeypatch):
    async with running(monkeypatch, 2.0, blocks=16) as (subject, engine):
        jobs = [new_job(name, 100, 60, local=False) for name in ("old", "new")]
        for job in jobs:
            await committed(subject, job)
        await asyncio.gather(*(finish(subject, job) for job in jobs))
    old, new = jobs
    assert (old.preemptions, new.preemptions > 0) == (0, True)
    # Its token behind the recomputed tokens comes from no step.
    assert old.steps.steps == 59 and 59 - new.preemptions <= new.steps.steps <= 59
    together = old.steps.steps + new.steps.steps - steps(engine)
    assert old.steps.seconds == pytest.approx(59 * STEP_S)
    assert old.steps.requests == 59 + together
