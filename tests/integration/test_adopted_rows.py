"""The row of a request whose router died: another router goes on with it, and has all of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from cluster.config.request_log import RequestLogConfig
from cluster.console.words import in_words
from cluster.journal.store import LEASE_S
from cluster.telemetry.requests.row import faults_of, whole
from cluster.telemetry.requests.stages import stage_marks
from tandem_client import Client
from tests.eventually import eventually
from tests.integration.local import slow_steps
from tests.integration.test_resumable import Read, die, two_routers, undisturbed
from tests.metrics_page import recorded

PROMPT = [3] * 300
ASKED = {"resumable": True, "ignore_eos": True, "request_id": "mine"}


async def adopted(local, other, client, *, has, **options):
    """The row of a stream whose router dies once a choice has so many tokens, and when it died."""
    read = Read(client.generate(PROMPT, **ASKED, **options))
    await eventually(lambda: any(len(ids) >= has for ids in read.have.values()))
    dies_at = time.time()
    await die(local.router)
    died_at = time.time()
    await asyncio.wait_for(read.task, 60)
    (row,) = (row for row in other.requests.store if row.request_id == "mine")
    return row, read, (dies_at, died_at)


async def test_the_silence_after_the_death_of_a_router_is_a_failover(config):
    prices = RequestLogConfig(prefill_price=3600.0)
    with recorded() as page:
        async with two_routers(replace(config, request_log=prices)) as (local, other, client):
            row, read, died = await adopted(local, other, client, has=30, max_tokens=200)
    (choice,) = row.choices
    assert (row.completion_tokens, choice.completion_tokens) == (200, 200)
    assert (choice.failovers, [one.replica for one in choice.failover_spans]) == (1, [""])
    (lost,) = choice.failover_spans
    assert choice.ttft_s < lost.begin_s < lost.end_s < choice.ttlt_s
    assert died[0] - 1.0 < row.received_at + lost.begin_s < died[1] + 0.1
    # No other router may take the stream before the lease of the dead one ends.
    assert LEASE_S / 2 < choice.failover_pause_s == lost.end_s - lost.begin_s
    # A busy machine may stall longer at another time.
    assert choice.longest_stall_s > choice.failover_pause_s - 0.02
    stages = stage_marks(choice)
    assert [one.stage for one in stages if one.begin_s >= choice.ttft_s][:3] == [
        *("decode", "failover", "decode")
    ]
    decode_s = sum(one.seconds for one in stages if one.stage == "decode")
    assert decode_s < choice.ttlt_s - choice.ttft_s - LEASE_S / 2
    assert not faults_of(row)
    assert choice.ttft_s <= choice.ttfmt_s < lost.begin_s
    assert (choice.route, choice.prefill_replica) == ("handed_over", "prefill-0")
    assert row.cost == pytest.approx(choice.prefill_share_s) and row.cost > 0
    said = in_words(whole(row))["0"]
    assert any(one.startswith("Its router was lost: from") for one in said)
    assert page.value("tandem_failover_pause_seconds_sum") == choice.failover_pause_s
    assert len(read.have[0]) == 200


async def test_a_choice_that_ended_before_is_in_the_row_too(config):
    options = {"n": 2, "max_tokens": 200, "seed": 5}
    async with two_routers(config) as (local, other, client):
        whole = await undisturbed(client, PROMPT, options | {"ignore_eos": True})
        # With it one choice ends soon, and the other one late or never.
        stop = next(one for one in whole.have[0][:25] if one not in whole.have[1][:90])
        options |= {"timing": True, "stop_token_ids": [stop]}
        row, read, _ = await adopted(local, other, client, has=60, **options)
    assert [one.choice for one in row.choices] == [0, 1]
    assert [one.failovers for one in row.choices] == [0, 1]
    assert [one.completion_tokens for one in row.choices] == [
        len(read.have[choice]) for choice in range(2)
    ]
    assert row.completion_tokens == sum(one.completion_tokens for one in row.choices)
    for choice, told in zip(row.choices, read.summary.choices, strict=True):
        assert [one.stage for one in told.stages] == [one.stage for one in stage_marks(choice)]
        assert told.stages[-1].end_s == pytest.approx(choice.ttlt_s)
    assert not faults_of(row)


async def test_what_a_router_ends_has_the_reason_in_its_row(config):
    config = replace(config, journal=replace(config.journal, detached_s=0.3))
    asked = {"max_tokens": 900, "ignore_eos": True}
    async with two_routers(config) as (local, other, _), Client(other.grpc_address) as client:
        slow_steps(local.decode, 0.02)  # all run until they are ended
        names = ("plain", "left", "alone")
        reads = {
            name: Read(client.generate(PROMPT, request_id=name, resumable=name != "plain", **asked))
            for name in names
        }
        for read in reads.values():
            await read.has(3)
        reads["alone"].task.cancel()
        await eventually(lambda: "alone" in {row.request_id for row in other.requests.store})
        other.router.in_flight.end_plain()
        other.router.in_flight.lose()
        await eventually(lambda: len(other.requests.store) == 3)
        rows = {row.request_id: (row.outcome, row.reason) for row in other.requests.store}
        for read in reads.values():
            read.task.cancel()
        await asyncio.gather(*(one.task for one in reads.values()), return_exceptions=True)
    assert rows == {
        "plain": ("Unavailable", "the router ended; send the request again"),
        "left": ("cancelled", "another router goes on with this stream"),
        "alone": ("cancelled", "no client listened for 0.3 s"),
    }
