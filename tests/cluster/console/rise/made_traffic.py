"""First tokens as a cluster of two and two replicas gives them, with a fault or without one."""

from __future__ import annotations

import random
from dataclasses import replace

from cluster.console.rise import ttft_rise
from cluster.console.rise.lengths import TextLength
from cluster.console.ttft_sample import STAGES, TtftSample

BEGIN = 1_700_000_000.0
TENANTS, ENDPOINTS = ("acme", "globex", "initech"), ("chat", "completions")


def rises(samples, answers=(), after_s=0.0):
    """The rises as they are told so long after the last first token."""
    last = max((one.at for one in samples), default=BEGIN)
    return ttft_rise.rises(samples, last + after_s, answers)


def made(draw, at, tenant, endpoint, **more):
    """A first token at that second, as usual but for `more`: stages in seconds, and fields."""
    took = {
        "admission": 0.0005,
        "prefill_queue": draw.expovariate(200),
        "prefill": 0.03 * draw.lognormvariate(0, 0.5),
        "first_flush": 0.001,
    }
    # Now and then the host is busy with other work.
    took["prefill"] += draw.uniform(0.1, 0.5) if draw.random() < 0.02 else 0.0
    fields = {name: value for name, value in more.items() if name not in STAGES}
    took |= {name: value for name, value in more.items() if name in STAGES}
    stages = tuple(took.get(name, 0.0) for name in STAGES)
    known = {
        "replica": f"prefill#{draw.randrange(2)}",
        "decode_replica": f"decode#{draw.randrange(2)}",
        "prompt_tokens": round(400 * draw.uniform(0.8, 1.2)),
    }
    return TtftSample(
        BEGIN + at, endpoint, tenant, ttft_s=sum(stages), stages=stages, **(known | fields)
    )


def calm(seed, seconds=900, rate=3.0):
    """Poisson arrivals of all tenants at all endpoints."""
    draw, at, found = random.Random(seed), 0.0, []
    while (at := at + draw.expovariate(rate)) < seconds:
        found.append(made(draw, at, draw.choice(TENANTS), draw.choice(ENDPOINTS)))
    return found


def slow_replica(seed, begin, end):
    """From `begin` to `end` prompts take eight times as long on one of two prefill replicas."""
    draw, found = random.Random(seed), []
    for one in calm(seed, end):
        at = one.at - BEGIN
        if at >= begin and one.replica == "prefill#1":
            slow = {"prefill": 0.24 * draw.lognormvariate(0, 0.5), "prefill_queue": 0.1}
            one = made(draw, at, one.tenant, one.endpoint, replica="prefill#1", **slow)
        found.append(one)
    return found


def burst(seed, begin, end):
    """From `begin` to `end` initech sends long prompts, and prompts of all tenants queue."""
    draw, found = random.Random(seed), []
    for one in calm(seed, end):
        at = one.at - BEGIN
        if at >= begin:
            queue = {"prefill_queue": draw.uniform(0.1, 0.6)}
            one = made(draw, at, one.tenant, one.endpoint, replica=one.replica, **queue)
        found.append(one)
    at = float(begin)
    while (at := at + draw.expovariate(8.0)) < end:
        queue = {"prefill_queue": draw.uniform(0.5, 3.0), "prefill": 0.15}
        found.append(made(draw, at, "initech", "completions", prompt_tokens=1500, **queue))
    return sorted(found, key=lambda one: one.at)


def full_kv(seed, begin, end):
    """From `begin` to `end` most requests wait in the router for KV blocks."""
    draw, found = random.Random(seed), []
    for one in calm(seed, end):
        at = one.at - BEGIN
        if at >= begin and draw.random() < 0.7:
            wait = {"admission": draw.uniform(0.2, 2.0), "waited_for": "kv_blocks"}
            one = made(draw, at, one.tenant, one.endpoint, **wait)
        found.append(one)
    return found


def with_stages(one, **more):
    """The sample with these seconds for stages, and these fields."""
    took = dict(zip(STAGES, one.stages, strict=True))
    took |= {name: value for name, value in more.items() if name in STAGES}
    fields = {name: value for name, value in more.items() if name not in STAGES}
    return replace(one, ttft_s=sum(took.values()), stages=tuple(took.values()), **fields)


def changed(samples, begin, end, change):
    """The samples; those from `begin` to `end` as `change` makes them."""
    return [change(one) if begin <= one.at - BEGIN < end else one for one in samples]


def burst_and_slow_replica(seed, begin, end):
    """A burst, and meanwhile prompts take eight times as long on one replica."""
    draw = random.Random(seed)

    def change(one):
        if one.replica == "prefill#1":
            return with_stages(one, prefill=8 * one.stages[STAGES.index("prefill")])
        return with_stages(one, prefill_queue=draw.uniform(0.0, 0.1))

    return changed(burst(seed, begin, end), begin, end, change)


def lost_replica(seed, begin, end):
    """From `begin` to `end` requests on one replica are lost, and begin again on the other one."""
    draw = random.Random(seed)

    def change(one):
        if one.replica != "prefill#1":
            return one
        return with_stages(one, replica="prefill#0", lost="prefill#1", failover=draw.uniform(1, 3))

    return changed(calm(seed, end), begin, end, change)


def late_router(seed, begin, end):
    """From `begin` to `end` the router is late to read requests."""
    draw = random.Random(seed)
    late = lambda one: with_stages(one, admission=draw.uniform(0.2, 0.6))  # noqa: E731
    return changed(calm(seed, end), begin, end, late)


def capped_tenant(seed, begin, end):
    """From `begin` to `end` globex waits for its own cap."""
    draw = random.Random(seed)

    def change(one):
        if one.tenant != "globex":
            return one
        wait_s = draw.uniform(0.5, 2.0)
        return with_stages(one, admission=wait_s, waited_for="tenant_concurrent")

    return changed(calm(seed, end), begin, end, change)


def new_replicas(seed, begin, end):
    """At `begin` other replicas serve, which are slow at first."""
    draw = random.Random(seed)

    def change(one):
        fresh = {"replica": f"prefill#{2 + draw.randrange(2)}", "decode_replica": "decode#2"}
        return with_stages(one, prefill=draw.uniform(0.2, 0.4), **fresh)

    return changed(calm(seed, end), begin, end, change)


def two_rises(seed, begin, end):
    """Prompts queue from `begin` for 60 s, and again in the last 60 s."""
    draw = random.Random(seed)
    late = lambda one: with_stages(one, prefill_queue=draw.uniform(0.2, 0.6))  # noqa: E731
    samples = changed(calm(seed, end), begin, begin + 60, late)
    return changed(samples, end - 60, end, late)


def answers_of(samples, begin, end, tokens):
    """Answers of 24 tokens, but of so many for initech from `begin` to `end`."""
    long = lambda one: one.tenant == "initech" and begin <= one.at - BEGIN < end  # noqa: E731
    return [TextLength(one.at, one.tenant, tokens if long(one) else 24) for one in samples]
