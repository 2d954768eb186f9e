"""Where streams go on that lost their replica."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord

LOAD = ReplicaLoad(blocks_total=10_000, block_size=16)
REPLICAS = [ReplicaRecord(f"decode-{n}", "decode", f"a:{n}", 1, load=LOAD) for n in range(3)]


def stream(tokens, digests=()):
    return PlacementRequest(tokens, tokens + 100, digests)


def place(placement, request, replicas=REPLICAS):
    plan = placement.plan_resume([], replicas, request, 0.0)
    placement.add_load(plan, request, 0.0)
    return plan.pair


@pytest.fixture
def placement():
    return Placement()


def test_streams_are_spread_by_the_tokens_that_they_lost(placement):
    """By requests alone one replica would compute half of all tokens."""
    lengths = [3000, 200, 200, 3000, 200, 200, 3000, 200, 200]
    tokens = Counter()
    for length in lengths:
        tokens[place(placement, stream(length)).decode.id] += length
    assert len(tokens) == 3 and max(tokens.values()) <= 3600


def test_a_replica_with_the_stream_s_prefix_comes_first(placement):
    digests = [bytes([place]) for place in range(60)]
    placement.load_tracker.request(REPLICAS[1].id, 10, 0.06)
    placement.learn(REPLICAS[1], digests)
    pair = place(placement, stream(1000, digests))
    assert (pair.decode.id, pair.cached_tokens) == ("decode-1", 960)


def test_a_replica_without_streams_computes_twice_as_fast(placement):
    busy = [replace(one, load=replace(LOAD, streams=4)) for one in REPLICAS[:2]]
    found = Counter(place(placement, stream(500), [*busy, REPLICAS[2]]).decode.id for _ in range(8))
    assert found["decode-2"] == 4


def test_tokens_that_a_replica_reports_as_due_count(placement):
    placement.load_tracker.report("decode-0", replace(LOAD, prompt_tokens_due=5000), 0.0)
    found = {place(placement, stream(500)).decode.id for _ in range(6)}
    assert found == {"decode-1", "decode-2"}


def test_a_full_replica_comes_last(placement):
    full = replace(REPLICAS[0], load=replace(LOAD, batch_limit=1))
    placement.load_tracker.request(full.id, 10, 0.06)
    busy = replace(REPLICAS[1], load=replace(LOAD, streams=9))
    assert place(placement, stream(5000), [full, busy]).decode.id == "decode-1"
