"""The order of prompts: turns by example, fairness by property, and a burst beside other orders."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.block_pool import BlockPool
from engine.scheduling.prompt_order import (
    OTHERS_PER_OVERDUE,
    PATIENCE_S,
    LaneShares,
    PendingPrompt,
    PromptOrder,
    UnderWay,
)
from engine.types.lane import LANES
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from prefill_pool.scheduler import PrefillScheduler

CHUNK = 100


def due(owner, remaining, deadline_s=100.0, lane="interactive", place=0):
    return PendingPrompt(owner, lane, remaining, deadline_s, place)


def order(token_s=None, **shares):
    made = PromptOrder(CHUNK, LaneShares(**shares))
    if token_s is not None:
        made.learn(10 * CHUNK, 10 * CHUNK * token_s)
    return made


def turn(subject, prompts, now=0.0, under_way=None):
    chunk = subject.chunk(prompts, now, lambda due: due.length, under_way)
    return [(due.owner, count) for due, count in chunk]


def test_the_shortest_goes_first_where_the_others_can_wait_for_it():
    subject = order(token_s=1.0)
    urgent, short = due("urgent", 100, deadline_s=109), due("short", 10, deadline_s=500)
    assert turn(subject, [urgent, short])[0] == ("urgent", 100)
    patient = due("urgent", 100, deadline_s=111)
    assert turn(subject, [patient, short])[0] == ("short", 10)


def test_what_is_late_anyway_waits_for_what_can_be_in_time():
    subject = order(token_s=1.0)
    late, in_time = due("late", 5, deadline_s=4), due("in time", 90, deadline_s=95)
    assert turn(subject, [late, in_time])[0] == ("in time", 90)


def test_of_prompts_that_cannot_all_be_in_time_the_longest_waits():
    subject = order(token_s=1.0)
    prompts = [due("long", 90, 100), due("a", 50, 101, place=1), due("b", 45, 102, place=2)]
    assert turn(subject, prompts)[0][0] != "long"


def test_before_anything_is_known_the_shortest_goes_first_and_a_pass_is_filled():
    assert turn(order(), [due("a", 70), due("b", 20)]) == [("b", 20), ("a", 70)]
    assert turn(order(), [due("a", 90), due("b", 20)]) == [("b", 20), ("a", 80)]


def test_prompts_share_a_pass_only_while_it_is_short():
    prompts = [due("a", 40), due("b", 50), due("c", 60)]
    assert turn(order(token_s=1.0), prompts) == [("a", 40)]
    assert turn(order(token_s=1e-6), prompts) == [("a", 40), ("b", 50), ("c", 10)]
    assert turn(order(token_s=1.0), [due("long", 350)]) == [("long", CHUNK)]


@pytest.mark.parametrize(
    ("new", "overtakes"),
    [
        (due("new", 5), True),
        (due("new", 95), False),
        (due("new", 60, lane="streaming"), False),
    ],
)
def test_a_pass_is_overtaken_by_what_is_much_shorter(new, overtakes):
    under_way = UnderWay({"old"}, "interactive", 100)
    found = turn(order(), [due("old", 300), new], under_way=under_way)
    assert bool(found) is overtakes


def test_batch_work_under_way_gives_way_to_any_chat():
    subject = order()
    batch, chat = due("batch", 20, lane="batch"), due("chat", 900)
    assert turn(subject, [batch]) == [("batch", 20)]
    assert turn(subject, [batch, chat], under_way=UnderWay({"batch"}, "batch", 20)) == [
        ("chat", CHUNK)
    ]


def test_a_prompt_without_capacity_is_passed_over():
    chunk = order().chunk(
        [due("a", 10), due("b", 20)], 0.0, lambda due: 0 if due.owner == "a" else 15
    )
    assert [(due.owner, count) for due, count in chunk] == [("b", 15)]


@given(
    st.dictionaries(st.sampled_from(LANES), st.floats(1, 50), min_size=2),
    st.integers(1, 3 * CHUNK),
)
@settings(deadline=None)
def test_each_lane_that_wants_more_gets_its_share(shares, size):
    subject = order(token_s=1e-4, **shares)
    lanes = list(shares)
    total = Counter()
    for _ in range(400):
        prompts = [due(lane, size, lane=lane) for lane in lanes]
        for owner, count in turn(subject, prompts):
            total[owner] += count
    all_tokens, all_shares = sum(total.values()), sum(shares.values())
    for lane in lanes:
        # Never behind by more than a chunk of each lane.
        fair = all_tokens * shares[lane] / all_shares
        assert total[lane] >= fair - CHUNK * (1 + len(lanes))


def test_an_idle_lane_saves_up_no_share():
    subject = order(token_s=1e-4)
    for _ in range(100):
        turn(subject, [due("a", CHUNK)])
    both = [due("a", CHUNK), due("b", CHUNK, lane="batch")]
    turns = [turn(subject, both)[0][0] for _ in range(10)]
    assert turns.count("b") <= 1


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 2.0)), min_size=1, max_size=20),
    st.integers(1, 2 * CHUNK),
    st.sampled_from(LANES),
)
@settings(deadline=None, max_examples=50)
def test_no_request_starves(others, length, lane):
    """However many short prompts keep arriving, an overdue one ends within a known time."""
    token_s = 0.01
    subject = order(token_s)
    left, now, place, spent = length, 0.0, 1, 0
    while left:
        shorts = []
        for tokens, slack_s in others:
            place += 1
            shorts.append(due(f"s{place}", tokens, now + tokens * token_s + slack_s, lane, place))
        long = due("long", left, 0.0, lane)
        found = turn(subject, [long, *shorts], now)
        assert found
        for owner, count in found:
            left -= count if owner == "long" else 0
            now += count * token_s
            spent += count if now > PATIENCE_S else 0
        assert spent <= (1 + OTHERS_PER_OVERDUE) * (length + 2 * CHUNK) + 2 * CHUNK


# A burst, in simulated time.

TOKENS_PER_S, PASS_S, LAYERS = 2500.0, 0.006, 30
BUDGET_S = 1.0


def arrivals(seed):
    """(time, tokens): 10 s at 0.3 of what can be computed, 5 s at 3 times that, 15 s calm again."""
    rng = random.Random(seed)
    found, now = [], 0.0
    while now < 30:
        load = 3.0 if 10 <= now < 15 else 0.3
        now += rng.expovariate(load * TOKENS_PER_S / 544)
        found.append((now, rng.randint(64, 1024)))
    return found


def by_key(work, key):
    """TTFT of each in chunks of 512 tokens, the prompt with the least key first."""
    left = [tokens for _, tokens in work]
    ttft, active, coming, now = {}, [], 0, 0.0
    while len(ttft) < len(work):
        while coming < len(work) and work[coming][0] <= now:
            active.append(coming)
            coming += 1
        if not active:
            now = work[coming][0]
            continue
        left_tokens, chunk = 512, []
        for index in sorted(active, key=lambda index: key(work[index], left[index])):
            chunk.append((index, min(left_tokens, left[index])))
            left_tokens -= chunk[-1][1]
        now += PASS_S + (512 - left_tokens) / TOKENS_PER_S
        for index, count in chunk:
            left[index] -= count
            if not left[index]:
                ttft[index] = now - work[index][0]
                active.remove(index)
    return list(ttft.values())


def by_the_scheduler(work):
    """TTFT of each with the prefill pool's own scheduler, passes cut between layers."""
    subject = PrefillScheduler(
        BlockPool(100_000),
        PromptOrder(512),
        block_size=16,
        max_waiting=10_000,
        parked_fraction=1.0,
    )
    ttft, passes, coming, now = {}, [], 0, 0.0
    while len(ttft) < len(work):
        while coming < len(work) and work[coming][0] <= now:
            arrived_s, tokens = work[coming]
            prompt = Sequence(str(coming), [0] * tokens, tokens, SamplingParams())
            prompt.ttft_budget_s = BUDGET_S
            subject.submit(prompt, arrived_s)
            coming += 1
        spans = subject.schedule(now)
        if spans:
            layer_s = (PASS_S + sum(span.count for span in spans) / TOKENS_PER_S) / LAYERS
            passes.append([spans, LAYERS, layer_s])
        if not passes:
            now = work[coming][0]
            continue
        spans, layers, layer_s = passes[-1]
        layers = min(layers, max(1, int(0.02 / layer_s)))
        passes[-1][1] -= layers
        now += layers * layer_s
        subject.advanced(spans, layers * layer_s)
        if not passes[-1][1]:
            passes.pop()
            for done in subject.complete(spans):
                ttft[int(done.owner)] = now - work[int(done.owner)][0]
                subject.remove(done.owner)
    return list(ttft.values())


def goodput(ttfts):
    return sum(ttft <= BUDGET_S for ttft in ttfts) / len(ttfts)


def test_in_a_burst_more_are_in_time_than_in_other_orders():
    good = Counter()
    for seed in range(4):
        work = arrivals(seed)
        served = by_the_scheduler(work)
        assert len(served) == len(work)
        good["here"] += goodput(served)
        good["first come, first served"] += goodput(by_key(work, lambda item, left: item[0]))
        good["shortest"] += goodput(by_key(work, lambda item, left: left))
    here = good.pop("here")
    assert here > 2 * good["first come, first served"]
    assert here > 1.05 * good["shortest"]
