"""The pressure on a pool: wherever its work waits, and of whichever lane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.autoscaling.load_signals import LoadLimits, pressure, shared
from cluster.replica_record import ReplicaLoad, ReplicaRecord

SPEED = 1000.0
waits = st.floats(0, 30)
counts = st.integers(0, 100)


def prefill(*queues_s, **more):
    """A replica for each queue, in seconds of prompts."""
    loads = [
        ReplicaLoad(prompt_tokens_due=round(s * SPEED), prompt_tokens_per_s=SPEED, **more)
        for s in queues_s
    ]
    return [ReplicaRecord(f"p{n}", "prefill", "", 1, load=load) for n, load in enumerate(loads)]


def router(name="router", **load):
    return ReplicaRecord(name, "router", "", 1, load=ReplicaLoad(**load))


def decode(**load):
    load = {"blocks_total": 100, "batch_limit": 100} | load
    return ReplicaRecord("d", "decode", "", 1, load=ReplicaLoad(**load))


@given(st.lists(waits, min_size=1, max_size=5), st.lists(waits, max_size=3), st.floats(0.1, 5))
def test_the_wait_of_a_prompt_is_that_in_the_routers_and_that_on_the_replica(queues, queued, limit):
    members = prefill(*queues) + [router(f"r{n}", queued_prefill_s=s) for n, s in enumerate(queued)]
    wait_s = min(queues) + sum(queued)
    assert pressure("prefill", members, LoadLimits(limit)) == pytest.approx(
        wait_s / limit, abs=0.02
    )


@given(st.integers(1, 5), waits, waits, st.integers(1, 5))
def test_it_is_no_matter_where_prompts_wait(replicas, queue_s, moved_s, left):
    """`moved_s` of all replicas, queued in a router, is as much as in each of their queues."""
    there = prefill(*[queue_s + moved_s] * replicas)
    here = [*prefill(*[queue_s] * replicas), router(queued_prefill_s=moved_s)]
    limits = LoadLimits()
    for measure in (pressure, lambda *of: shared(*of, left)):
        assert measure("prefill", here, limits) == pytest.approx(
            measure("prefill", there, limits), abs=0.02
        )


@given(waits, waits, st.integers(0, 3))
def test_a_longer_line_and_more_refusals_never_press_less(queued_s, more_s, unserved):
    def pressed(queued_s, unserved):
        members = [*prefill(0.3), router(queued_prefill_s=queued_s, unserved_prefill=unserved)]
        return pressure("prefill", members, LoadLimits())

    assert pressed(queued_s + more_s, unserved) >= pressed(queued_s, unserved)
    assert pressed(queued_s, unserved + 1) >= max(1, pressed(queued_s, unserved))


@given(counts, counts, counts, counts, st.booleans())
def test_batch_work_makes_no_pressure_unless_configured(streams, blocks, batch, tokens, counted):
    """A pool with it is as pressed as without it, or as if it were any other."""
    limits = LoadLimits(batch=counted)
    alone = decode(streams=streams, blocks_used=blocks, blocks_promised=blocks, step_s=0.05)
    beside = replace(
        alone,
        load=replace(
            alone.load,
            streams=streams + batch,
            blocks_used=blocks + batch,
            blocks_promised=blocks + batch,
            batch_streams=batch,
            batch_blocks=batch,
        ),
    )
    # A step with others in it is slower, so the ITL is tested by itself.
    loose = replace(limits, itl_s=1e9)
    with_it, without = (pressure("decode", [one], loose) for one in (beside, alone))
    assert (with_it > without) == (counted and batch > 0)
    queue = prefill(0.5, batch_tokens_due=min(tokens, 500))
    share = 0.5 if counted else 0.5 - min(tokens, 500) / SPEED
    assert pressure("prefill", queue, limits) == pytest.approx(share)


@pytest.mark.parametrize(("counted", "expected"), [(False, 0.0), (True, 1.0)])
def test_a_batch_backlog_is_no_pressure_on_a_pool(counted, expected):
    members = [decode(), router(unserved_batch=7)]
    assert pressure("decode", members, LoadLimits(batch=counted)) == expected


def test_steps_of_batch_work_alone_count_for_no_itl():
    slow = {"streams": 8, "step_s": 1.0}
    assert pressure("decode", [decode(**slow)], LoadLimits()) > 1
    assert pressure("decode", [decode(**slow, batch_streams=8)], LoadLimits()) == 0
    assert pressure("decode", [decode(**slow, batch_streams=7)], LoadLimits()) > 1
