"""How fast replicas are, from their reports, and which of them is slow beside the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.cost_model import CostModel
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.router.console.replica_speed import ReplicaSpeed, speeds


def prefill(name, token_s, *, pass_s=0.0, role="prefill", model="m"):
    """A replica whose passes have at most 500 tokens."""
    load = ReplicaLoad(pass_s=pass_s, pass_token_s=token_s, shared_tokens=100, chunk_tokens=500)
    return ReplicaRecord(name, role, "", 1, model, load=load)


def decode(name, step_s, streams=4):
    load = ReplicaLoad(step_s=step_s, streams=streams, batch_limit=64)
    return ReplicaRecord(name, "decode", "", 1, load=load)


def made(times):
    """What a router has seen of prompts of 1,000 tokens, each replica's seconds in their order."""
    costs = CostModel()
    for name, seconds in times.items():
        for number, took in enumerate(seconds):
            costs.prefill(name).learn(1000, 0, took, 2000.0 * number + took)
    return costs


def speeds_of(replicas):
    return speeds(replicas, CostModel())


def learned(prompts=(), steps=()):
    """What a router has learned: seconds for 1,000 tokens, and of a step of four streams."""
    costs = CostModel()
    for number in range(40):
        for name, seconds in prompts:
            costs.prefill(name).learn(1000, 0, seconds, 100.0 * number + seconds)
        for name, seconds in steps:
            for batch in (1, 4, 12, 20):
                costs.learn_step(name, batch, seconds * batch / 4)
    return costs


def slow(*replicas, costs=None):
    """What is said of slow ones; without `costs` what was learned is of no other opinion."""
    if costs is None:
        loads = {one.id: one.load for one in replicas}
        prompts = [(name, 1000 * one.pass_token_s) for name, one in loads.items() if one.passes]
        steps = [(name, one.step_s or 0.0) for name, one in loads.items()]
        costs = learned(prompts, steps)
    found = speeds(replicas, costs)
    return {name: one.slow for name, one in found.items() if one.slow}


def test_prefill_is_told_for_a_thousand_tokens_and_decode_for_a_step():
    found = speeds_of([prefill("p", 0.0001, pass_s=0.0201), decode("d", 0.0123456)])
    assert found == {"p": ReplicaSpeed(0.14, None), "d": ReplicaSpeed(None, 0.0123)}
    both = prefill("b", 0.001, role="both")
    assert speeds_of([both])["b"] == ReplicaSpeed(1.0, None)
    idle = ReplicaRecord("new", "prefill", "", 1)
    assert speeds_of([idle]) == {"new": ReplicaSpeed()}


def test_a_replica_that_takes_more_than_twice_as_long_as_the_others_is_slow():
    assert slow(prefill("p0", 0.001), prefill("p1", 0.0099)) == {"p1": "slow: 9.9x the others"}
    three = prefill("p0", 0.001), prefill("p1", 0.0012), prefill("p2", 0.0275)
    assert slow(*three) == {"p2": "slow: 25x the others"}
    assert slow(prefill("p0", 0.001), prefill("p1", 0.00199)) == {}
    assert slow(prefill("p0", 0.1), prefill("p1", 0.1)) == {}, "a pool that is slow as a whole"
    assert slow(prefill("alone", 0.1)) == {}


def test_a_slow_moment_is_no_mark_and_a_slow_replica_is():
    prompts = prefill("p0", 0.001), prefill("p1", 0.005)
    assert slow(*prompts, costs=learned([("p0", 1.0), ("p1", 1.2)])) == {}
    assert set(slow(*prompts, costs=learned([("p0", 1.0), ("p1", 4.0)]))) == {"p1"}
    assert slow(*prompts, costs=learned([("p0", 1.0)])) == {}, "nothing is learned of it"
    steps = decode("d0", 0.010), decode("d1", 0.050)
    assert slow(*steps, costs=learned(steps=[("d0", 0.010), ("d1", 0.011)])) == {}
    assert set(slow(*steps, costs=learned(steps=[("d0", 0.010), ("d1", 0.05)]))) == {"d1"}
    # It was slow, and is not any more.
    again = prefill("p0", 0.001), prefill("p1", 0.001)
    assert slow(*again, costs=learned([("p0", 1.0), ("p1", 9.0)])) == {}


USUAL = st.floats(0.85, 1.15)
VERY_SLOW = st.floats(5.0, 1000.0)
BOTH = prefill("p0", 0.001), prefill("p1", 0.1)


@given(st.lists(USUAL, min_size=6), st.lists(USUAL), VERY_SLOW, st.data())
def test_no_single_prompt_makes_a_mark(others, times, moment, data):
    """Even if the replica itself tells of a slow moment, and whatever it was known for."""
    assert slow(*BOTH, costs=made({"p0": others, "p1": times})) == {}
    at = data.draw(st.integers(0, len(times)))
    once = [*times[:at], moment, *times[at:]]
    assert slow(*BOTH, costs=made({"p0": others, "p1": once})) == {}


@given(st.lists(USUAL, min_size=6), st.lists(USUAL), st.lists(VERY_SLOW, min_size=2))
def test_two_very_slow_prompts_make_a_mark(others, times, last):
    """A router that avoids the replica may never see a third; it may be new, or well known."""
    assert slow(*BOTH, costs=made({"p0": others, "p1": [*times, *last]})) != {}


def test_prompts_that_overlap_count_as_one():
    costs = made({"p0": [1.0] * 8})
    for number in range(5):
        costs.prefill("p1").learn(1000, 0, 20.0 + number, 20.0 + number)
    assert slow(*BOTH, costs=costs) == {}, "they may share a single slow moment"


def test_a_slow_replica_that_gets_two_prompts_of_any_length_is_marked():
    costs = made({"p0": [1.0] * 8})
    for number, tokens in enumerate((60, 3000)):
        costs.prefill("p1").learn(tokens, 0, 0.01 * tokens, 100.0 * number + 0.01 * tokens)
    assert set(slow(*BOTH, costs=costs)) == {"p1"}


def test_only_replicas_of_one_role_and_model_are_compared():
    assert slow(prefill("p0", 0.001), prefill("p1", 0.1, model="other")) == {}
    assert slow(prefill("p0", 0.001), prefill("p1", 0.1, role="both")) == {}
    # One that computed nothing yet is compared with nothing.
    assert slow(prefill("p0", 0.1), ReplicaRecord("new", "prefill", "", 1, "m")) == {}


def test_a_step_is_slow_only_if_its_batch_does_not_explain_it():
    assert slow(decode("d0", 0.010), decode("d1", 0.050)) == {"d1": "slow: 5.0x the others"}
    assert slow(decode("d0", 0.010, 1), decode("d1", 0.050, 20)) == {}
    assert set(slow(decode("d0", 0.010, 20), decode("d1", 0.050, 1))) == {"d1"}
    # A larger batch than that of the others, and a step that is much longer still.
    assert set(slow(decode("d0", 0.010, 4), decode("d1", 0.100, 12))) == {"d1"}
    assert slow(decode("d0", 0.010), decode("d1", 0.500, 0)) == {}, "it has no streams"
    assert slow(decode("d0", 0.010, 0), decode("d1", 0.500)) == {}


@given(
    st.lists(st.tuples(st.floats(1e-4, 1e-2), st.integers(1, 64)), min_size=2, max_size=6),
)
def test_steps_that_grow_with_their_batch_are_never_slow(parts):
    """Of equal replicas: a step has a constant part, and a part for each stream."""
    token_s = parts[0][0]
    pool = [decode(f"d{n}", 0.002 + token_s * batch, batch) for n, (_, batch) in enumerate(parts)]
    assert slow(*pool) == {}
