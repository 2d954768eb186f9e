"""What a decode replica is promised to hold: blocks and slots in its batch, by lane."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.cost_model import CostModel
from cluster.placement.decode_capacity import DecodeCapacity
from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord


def record(limit=8, blocks=100, name="d0", **load):
    load = ReplicaLoad(blocks_total=blocks, block_size=16, batch_limit=limit, **load)
    return ReplicaRecord(name, "decode", "", 1, load=load)


def request(tokens=16, **more):
    return PlacementRequest(1, tokens, **more)


def test_no_more_are_promised_a_slot_than_share_a_step():
    capacity = DecodeCapacity(ReplicaLoadTracker())
    assert capacity.slots_shortfall([record(running=5, waiting=2)], request()) == 0
    assert capacity.slots_shortfall([record(running=5, waiting=2)], request(choices=4)) == 3
    assert capacity.slots_shortfall([record(running=8)], request()) == 1
    assert capacity.is_full(record(running=8), request())


def test_where_batches_are_formed_of_the_waiting_all_have_a_slot():
    assert (
        DecodeCapacity(ReplicaLoadTracker(), batch_slots=False).slots_shortfall(
            [record(running=80)], request()
        )
        == 0
    )


def test_a_replica_that_does_not_say_its_limit_has_none():
    unlimited = record(limit=0, running=80)
    assert DecodeCapacity(ReplicaLoadTracker()).slots_shortfall([unlimited], request()) == 0


def test_the_batch_lane_leaves_a_quarter_to_the_others():
    capacity = DecodeCapacity(ReplicaLoadTracker())
    half_full = record(running=6, blocks_promised=75)
    assert capacity.slots_shortfall([half_full], request(batch=True)) == 1
    assert capacity.blocks_shortfall([half_full], request(batch=True)) == 1
    assert not capacity.is_full(half_full, request())


def test_of_a_batch_of_one_the_batch_lane_gets_the_slot():
    assert (
        DecodeCapacity(ReplicaLoadTracker()).slots_shortfall([record(limit=1)], request(batch=True))
        == 0
    )


def test_choices_may_go_to_all_replicas():
    capacity = DecodeCapacity(ReplicaLoadTracker())
    pool = [record(name=f"d{n}", running=7, blocks_promised=90) for n in range(4)]
    assert capacity.slots_shortfall(pool, request(choices=4)) == 0
    assert capacity.slots_shortfall(pool, request(choices=6)) == 2
    assert capacity.blocks_shortfall(pool, request(6 * 16, choices=6)) == 2
    assert not capacity.is_full(pool[0], request(choices=4))


def test_a_batch_request_larger_than_its_part_may_use_the_free_whole():
    """Or a large request of the batch lane, and all behind it, would wait until nobody is there."""
    capacity, busy = DecodeCapacity(ReplicaLoadTracker()), record(running=1, blocks_promised=1)
    assert capacity.slots_shortfall([busy], request(choices=7, batch=True)) == 0
    assert capacity.slots_shortfall([record(running=2)], request(choices=7, batch=True)) == 1
    assert capacity.blocks_shortfall([busy], request(80 * 16, batch=True)) == 0
    fuller = record(blocks_promised=21)
    assert capacity.blocks_shortfall([fuller], request(80 * 16, batch=True)) == 1


asked = st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60)


@given(asked, st.integers(1, 20), st.floats(0.5, 2.0))
def test_promises_stay_within_the_bounds_and_batch_leaves_some(asked, limit, overcommit):
    tracker, known = ReplicaLoadTracker(), record(limit=limit)
    capacity = DecodeCapacity(tracker, overcommit)
    for batch, tokens in asked:
        one = request(tokens, batch=batch)
        if capacity.is_full(known, one):
            continue
        tracker.request("d0", -(-tokens // 16), 1.0)
        assert tracker.requests(known) <= limit
        assert tracker.blocks(known) <= overcommit * 100
        if batch and limit > 3:
            assert not capacity.slots_shortfall([known], request())


def capacity_of(stream_s, limit, requests, streams):
    costs = CostModel()
    if stream_s is not None:
        costs.learn_stream("d0", stream_s)
    known = record(limit, 10_000, running=requests, streams=streams)
    return DecodeCapacity(ReplicaLoadTracker(), costs=costs), known


def free_slots(capacity, known, within_s):
    return 500 - capacity.slots_shortfall([known], request(choices=500), within_s)


def test_a_slot_is_promised_from_the_hand_over_on():
    """Ten requests of two seconds each: one ends every 0.2 s."""
    capacity, known = capacity_of(2.0, 10, requests=10, streams=8)
    assert [free_slots(capacity, known, s) for s in (0.0, 0.1, 0.2, 0.5, 1.9)] == [0, 0, 1, 2, 8]
    assert not capacity.is_full(known, request(), 0.2)


def test_only_streams_end_before_a_prompt():
    capacity, known = capacity_of(1.0, 4, requests=6, streams=1)
    assert free_slots(capacity, known, 60.0) == 0


def test_no_end_is_predicted_before_the_first_was_seen():
    capacity, known = capacity_of(None, 4, requests=4, streams=4)
    assert free_slots(capacity, known, 60.0) == 0


slots = st.integers(0, 60)


@given(st.floats(0.01, 60), st.integers(1, 40), slots, slots, st.floats(0, 90), st.floats(0, 90))
def test_more_slots_are_free_the_later_the_hand_over(stream_s, limit, requests, streams, a, b):
    """At no time more than the limit, and at once as many as are free now."""
    capacity, known = capacity_of(stream_s, limit, requests, streams)
    sooner, later = sorted((a, b))
    free = [free_slots(capacity, known, within_s) for within_s in (0.0, sooner, later)]
    assert free == sorted(free)
    assert free[0] == max(0, limit - requests)
    assert free[-1] <= min(limit, max(0, limit - requests + streams))


@given(st.integers(1, 40), st.floats(0.2, 5), st.floats(0, 3), st.integers(1, 400))
def test_streams_that_end_at_the_predicted_rate_never_exceed_the_limit(limit, stay_s, wait_s, rate):
    """A full replica whose requests end evenly, and requests that come and wait for their prompt.

    Each takes its slot after `wait_s`. It is placed only where a slot is predicted to be free.
    """
    costs, tracker = CostModel(), ReplicaLoadTracker()
    costs.learn_stream("d0", stay_s + wait_s)
    capacity = DecodeCapacity(tracker, costs=costs)
    ends = [stay_s * (number + 1) / limit for number in range(limit)]
    shares = [(at, tracker.request("d0", 1, 1.0)) for at in ends]
    starts = []
    for tick in range(int(stay_s * rate)):
        now = tick / rate
        for at, share in shares:
            if at <= now:
                share.release()
        known = record(limit, 10_000, streams=sum(at > now for at in ends))
        if not capacity.is_full(known, request(), wait_s):
            starts.append(now + wait_s)
            tracker.request("d0", 1, 1.0)
        if len(starts) > limit:
            break
    for at in starts:
        streams = sum(end > at for end in ends) + sum(start <= at for start in starts)
        assert streams <= limit + 1
