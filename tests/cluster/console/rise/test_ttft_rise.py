"""Why TTFT rose: the stage, pool, replica, tenant and reason of three made faults."""

from __future__ import annotations

from random import Random

import pytest

from cluster.console.ttft_sample import STAGES, TtftSample
from tests.cluster.console.rise.made_traffic import rises

BEGIN = 1_700_000_000.0


def sample(at, ttft_s, stage="prefill", **more):
    """A TTFT of 100 ms of prefill, and what goes beyond that in one stage."""
    parts = dict.fromkeys(STAGES, 0.0) | {"prefill": 0.1}
    parts[stage] += ttft_s - 0.1
    known = {"endpoint": "chat", "tenant": "acme", "replica": "prefill-0", "prompt_tokens": 100}
    return TtftSample(BEGIN + at, ttft_s=ttft_s, stages=tuple(parts.values()), **(known | more))


def steady(seconds=900):
    return [
        sample(at, 0.1, replica=f"prefill-{at % 2}", tenant=("acme", "beta")[at % 3 == 0])
        for at in range(seconds)
    ]


def test_a_steady_time_has_no_rise():
    assert rises(steady()) == []
    assert rises([]) == []
    assert rises([sample(0, 0.1)]) == []


def test_a_slow_prefill_replica():
    samples = [
        sample(at, 0.5 if at >= 600 and at % 2 else 0.1, replica=f"prefill-{at % 2}")
        for at in range(900)
    ]
    (rise,) = rises(samples)
    assert (rise.begin, rise.end) == (BEGIN + 600, BEGIN + 899)  # it ends with the newest token
    assert (rise.stages[0].name, round(rise.stages[0].share, 2)) == ("prefill", 1.0)
    assert rise.pools[0].name == "prefill"
    assert (rise.replicas[0].name, round(rise.replicas[0].share, 2)) == ("prefill-1", 1.0)
    assert rise.replicas[0].requests == 0.5


def test_a_burst_of_a_tenant_that_is_over():
    samples = steady()
    for at in range(300, 400):
        samples += [sample(at, 0.4, "prefill_queue", tenant="burst") for _ in range(5)]
    (rise,) = rises(sorted(samples, key=lambda one: one.at))
    assert (rise.begin, rise.end) == (BEGIN + 300, BEGIN + 400)
    assert rise.stages[0].name == "prefill_queue"
    assert rise.tenants[0].name == "burst"
    assert rise.tenants[0].sent == "it sent nothing before"


def test_another_slow_time_of_a_rise_has_its_own_cause():
    samples = [
        sample(at, 0.5 if at >= 780 and at % 2 else 0.1, replica=f"prefill-{at % 2}")
        for at in range(900)
    ]
    for at in range(300, 360):
        on = ({"tenant": "burst", "replica": f"prefill-{number % 2}"} for number in range(6))
        samples += [sample(at, 0.6, "prefill_queue", **one) for one in on]
    (rise,) = rises(sorted(samples, key=lambda one: one.at))
    assert rise.cause.replica == "prefill-1" and [one.begin for one in rise.also] == [BEGIN + 300]
    assert rise.words.endswith(
        " requests. Then the added time was the prefill queue; burst sent more."
    )


def test_a_kv_pool_nearly_full():
    samples = [sample(at, 0.1) for at in range(600)]
    samples += [sample(at, 0.6, "admission", waited_for="kv_blocks") for at in range(600, 900)]
    (rise,) = rises(samples)
    assert rise.stages[0].name == "admission"
    assert rise.pools[0].name == "decode"
    assert rise.reasons[0].name == "kv_blocks"


def test_the_endpoint_with_the_most_added_time_comes_first():
    samples = [sample(at, 0.1 if at < 450 else 0.2) for at in range(900)]
    samples += [sample(at, 0.1 if at < 450 else 0.9, endpoint="score") for at in range(900)]
    assert [rise.endpoint for rise in rises(samples)] == ["score", "chat"]


@pytest.mark.parametrize("seed", [132, 137, 146])
def test_a_rise_took_longer_than_usual_also_beside_few_requests_that_took_longest(seed):
    """Times too short for a rise count as usual, so the others have to be high beside them."""
    made, spans = Random(seed), [(200, 260), (420, 480), (640, 700)]
    samples = []
    for endpoint in ["chat", *(f"e{number}" for number in range(made.choice([1, 3])))]:
        step = made.choice([2, 5, 20, 40, 60])
        levels = [made.choice([0.1, 0.3, 0.6, 5.0, 20.0]) for _ in spans]
        counts = [made.choice([2, 3, 4, 6, 12]) for _ in spans]

        def took(level, endpoint=endpoint):
            return {"ttft_s": level * made.uniform(0.7, 1.4), "endpoint": endpoint}

        calm = (at for at in range(0, 900, step) if not any(a <= at < b for a, b in spans))
        samples += [sample(at, **took(0.1)) for at in calm]
        for span, level, count in zip(spans, levels, counts, strict=True):
            times = range(40 if endpoint == "chat" else count)
            samples += [sample(made.uniform(*span), **took(level)) for _ in times]
    samples.sort(key=lambda one: one.at)
    assert all(rise.slow_s > 1.4 * rise.usual_s for rise in rises(samples))


@pytest.mark.parametrize("seed", range(4))
def test_slow_times_that_touch_are_one(seed):
    draw, samples, at = Random(seed), [], 0.0
    for seconds, factor in ((120, 1), (100, 6), (100, 2), (40, 60)):
        for _ in range(3 * seconds):
            samples.append(sample(at, 0.1 + 0.03 * factor * draw.lognormvariate(0, 0.5)))
            at += 1 / 3
    (one,) = rises(samples)
    assert one.also == []
    assert one.words.startswith("TTFT of chat has been high for 4 min: ")
