"""What a decode replica is promised to hold: blocks and places in its batch, by lane."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.decode_capacity import DecodeCapacity
from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord


def record(limit=8, blocks=100, name="d0", **load):
    load = ReplicaLoad(blocks_total=blocks, block_size=16, batch_limit=limit, **load)
    return ReplicaRecord(name, "decode", "", 1, load=load)


def ask(tokens=16, **more):
    return PlacementRequest(1, tokens, **more)


def test_no_more_are_promised_a_place_than_share_a_step():
    room = DecodeCapacity(ReplicaLoadTracker())
    assert room.slots_shortfall([record(running=5, waiting=2)], ask()) == 0
    assert room.slots_shortfall([record(running=5, waiting=2)], ask(choices=4)) == 3
    assert room.slots_shortfall([record(running=8)], ask()) == 1
    assert room.is_full(record(running=8), ask())


def test_where_batches_are_formed_of_who_waits_all_have_a_place():
    assert (
        DecodeCapacity(ReplicaLoadTracker(), batch_slots=False).slots_shortfall(
            [record(running=80)], ask()
        )
        == 0
    )


def test_a_replica_that_does_not_say_its_limit_has_none():
    assert (
        DecodeCapacity(ReplicaLoadTracker()).slots_shortfall([record(limit=0, running=80)], ask())
        == 0
    )


def test_the_batch_lane_leaves_a_quarter_to_the_others():
    room, half_full = DecodeCapacity(ReplicaLoadTracker()), record(running=6, blocks_promised=75)
    assert room.slots_shortfall([half_full], ask(batch=True)) == 1
    assert room.blocks_shortfall([half_full], ask(batch=True)) == 1
    assert not room.is_full(half_full, ask())


def test_of_a_batch_of_one_the_batch_lane_gets_the_place():
    assert (
        DecodeCapacity(ReplicaLoadTracker()).slots_shortfall([record(limit=1)], ask(batch=True))
        == 0
    )


def test_choices_may_go_to_all_replicas():
    room = DecodeCapacity(ReplicaLoadTracker())
    pool = [record(name=f"d{n}", running=7, blocks_promised=90) for n in range(4)]
    assert room.slots_shortfall(pool, ask(choices=4)) == 0
    assert room.slots_shortfall(pool, ask(choices=6)) == 2
    assert room.blocks_shortfall(pool, ask(6 * 16, choices=6)) == 2
    assert not room.is_full(pool[0], ask(choices=4))


def test_what_its_part_could_never_hold_may_have_what_is_free_of_the_whole():
    """Or a large request of the batch lane, and all behind it, would wait until nobody is there."""
    room, busy = DecodeCapacity(ReplicaLoadTracker()), record(running=1, blocks_promised=1)
    assert room.slots_shortfall([busy], ask(choices=7, batch=True)) == 0
    assert room.slots_shortfall([record(running=2)], ask(choices=7, batch=True)) == 1
    assert room.blocks_shortfall([busy], ask(80 * 16, batch=True)) == 0
    assert room.blocks_shortfall([record(blocks_promised=21)], ask(80 * 16, batch=True)) == 1


asked = st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60)


@given(asked, st.integers(1, 20), st.floats(0.5, 2.0))
def test_whoever_has_room_stays_within_the_bounds_and_batch_leaves_some(asked, limit, overcommit):
    holds, known = ReplicaLoadTracker(), record(limit=limit)
    room = DecodeCapacity(holds, overcommit)
    for batch, tokens in asked:
        one = ask(tokens, batch=batch)
        if room.is_full(known, one):
            continue
        holds.request("d0", -(-tokens // 16), 1.0)
        assert holds.requests(known) <= limit
        assert holds.blocks(known) <= overcommit * 100
        if batch and limit > 3:
            assert not room.slots_shortfall([known], ask())
