"""First tokens as a cluster of two and two replicas gives them, with a fault or without one."""

from __future__ import annotations

import random

from cluster.console.ttft_sample import STAGES, TtftSample

BEGIN = 1_700_000_000.0
TENANTS, ENDPOINTS = ("acme", "globex", "initech"), ("chat", "completions")


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
