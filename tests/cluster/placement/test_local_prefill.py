"""Prompts that a decode replica computes itself, on a device of its own and on a shared one."""

from dataclasses import replace

import pytest

from cluster.placement.types import PlacementRequest
from engine.types.urgency import Urgency
from tests.cluster.placement.test_placement import Placement, replica


@pytest.mark.parametrize(
    ("local_prefill_tokens", "prompt", "on_prefill", "running", "local"),
    [
        (20, 80, 0, 0, True),
        (20, 85, 0, 0, False),
        (0, 80, 0, 0, False),
        (20, 80, 4, 0, False),
        (20, 80, 3, 0, True),
        (20, 80, 0, 8, False),
    ],
)
def test_a_chat_is_continued_where_most_of_it_is_cached(
    local_prefill_tokens, prompt, on_prefill, running, local
):
    pool = [replica("p0", "prefill")]
    decode = [replica("d0", "decode"), replica("d1", "decode", running=running, batch_limit=8)]
    placement = Placement(local_prefill_tokens)
    digests = [bytes([number]) for number in range(5)]
    placement.learn(decode[1], digests[:4])
    placement.learn(pool[0], digests[:on_prefill])
    pair = placement.choose(pool, decode, prompt, 100, digests)
    assert pair.local is local
    if local:
        assert (pair.prefill.id, pair.decode.id, pair.cached_tokens) == ("d1", "d1", 64)
    else:
        assert pair.prefill.id == "p0"


@pytest.mark.parametrize(
    ("devices", "local"),
    [(("", ""), True), (("cores-1", "cores-2"), True), (("cores-1", "cores-1"), False)],
)
def test_decode_computes_short_prompts_on_a_device_of_its_own(devices, local):
    prefill = replace(replica("p0", "prefill"), device=devices[0])
    decode = replace(replica("d0", "decode"), device=devices[1])
    placement = Placement(local_prefill_tokens=256)
    for record in (prefill, decode):
        for second in range(-20, 0):
            placement.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    for _ in range(3):
        placement.add_prompt(prefill, 320)  # all due in a second
    request = PlacementRequest(100, 120, budget_s=2.0)
    pair = placement.plan([prefill], [decode], request, 0.0).pair
    assert (pair.local, pair.own_device) == (local, local)
    digests = [bytes([number]) for number in range(6)]
    cached = replace(request, digests=digests)
    placement.learn(decode, digests[:1])
    # A little of it is cached there, then most of it.
    assert placement.plan([prefill], [decode], cached, 0.0).pair.local is local
    placement.learn(decode, digests)
    pair = placement.plan([prefill], [decode], cached, 0.0).pair
    assert (pair.local, pair.own_device) == (True, local)


@pytest.mark.parametrize(
    ("running", "on_prefill", "least", "local"),
    [
        (1, 0, Urgency.PROMPTS, True),
        (0, 0, Urgency.PROMPTS, False),  # nobody computes: prefill may as well
        (1, 10, Urgency.PROMPTS, False),  # both would compute
        (1, 0, Urgency.PRESSED, False),  # prefill will compute at once
        (1, 0, Urgency.URGENT, False),
    ],
)
def test_a_shared_device_serves_one_of_both_pools(running, on_prefill, least, local):
    placement, prefill, decode = sharing(running)
    if on_prefill:
        placement.add_prompt(prefill, on_prefill)
    request = PlacementRequest(100, 120, budget_s=10.0)
    pair = placement.plan([prefill], [decode], request, 0.0, least=least).pair
    assert (pair.local, pair.own_device) == (local, False)
    digests = [bytes([number]) for number in range(6)]
    placement.learn(prefill, digests[:1])
    cached = replace(request, digests=digests)
    assert not placement.plan([prefill], [decode], cached, 0.0, least=least).pair.local


def test_prompts_of_others_and_of_a_second_replica_keep_a_device_busy():
    placement, prefill, decode = sharing(running=1)
    request = PlacementRequest(100, 120, budget_s=10.0)
    told = replace(prefill, load=replace(prefill.load, prompt_tokens_due=300))
    assert not placement.plan([told], [decode], request, 0.0).pair.local
    second = replace(prefill, id="p1")
    placement.add_prompt(second, 300)
    assert not placement.plan([prefill, second], [decode], request, 0.0).pair.local
    assert placement.plan([prefill], [decode], request, 0.0).pair.local


def test_decode_computes_nothing_while_another_device_is_unused():
    """Two hosts with a replica of each kind, and streams on one."""
    placement, prefill, decode = sharing(running=1)
    idle = [
        replace(replica(f"{kind[0]}1", kind), device="others") for kind in ("prefill", "decode")
    ]
    for second in range(-20, 0):
        placement.costs.prefill("p1").learn(300, 0, 0.25, float(second))
    pair = placement.plan(
        [prefill, idle[0]], [decode, idle[1]], PlacementRequest(100, 120), 0.0
    ).pair
    assert (pair.prefill.id, pair.local) == ("p1", False)


def test_a_prompt_waits_on_decode_behind_no_longer_one():
    placement, prefill, decode = sharing(running=1)
    request = PlacementRequest(100, 120, budget_s=100.0)
    placement.add_prompt(decode, 50)
    assert placement.plan([prefill], [decode], request, 0.0).pair.local
    placement.add_prompt(decode, 200)
    assert not placement.plan([prefill], [decode], request, 0.0).pair.local


@pytest.mark.parametrize("waiting", [0, 50])
def test_a_prompt_on_decode_is_on_time_though_prefill_slows_it(waiting):
    """A prefill replica that begins takes a part of the device."""
    placement, prefill, decode = sharing(running=1)
    if waiting:
        placement.add_prompt(decode, waiting)
    request = PlacementRequest(100, 120, budget_s=10.0)
    alone_s = placement.plan([prefill], [decode], request, 0.0).forecast.ttft_s
    for times, local in ((1.1, False), (9.0, True)):
        hurried = replace(request, budget_s=times * alone_s)
        assert placement.plan([prefill], [decode], hurried, 0.0).pair.local is local


def sharing(running):
    """A placement, a prefill and a decode replica with one device, at some speed."""
    prefill = replace(replica("p0", "prefill"), device="cores")
    decode = replace(replica("d0", "decode", running=running), device="cores")
    placement = Placement(local_prefill_tokens=256)
    for record in (prefill, decode):
        for second in range(-20, 0):
            placement.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    return placement, prefill, decode


def test_decode_computes_nothing_beside_a_prefill_replica_that_is_not_the_best():
    """It would slow that one."""
    prefill = [replace(replica(f"p{n}", "prefill"), device=f"cores-{n}") for n in (0, 1)]
    decode = replace(replica("d0", "decode"), device="cores-1")
    placement = Placement(local_prefill_tokens=256)
    for record in (*prefill, decode):
        for second in range(-20, 0):
            placement.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    for _ in range(3):
        placement.add_prompt(prefill[0], 320)
        placement.add_prompt(prefill[1], 330)
    request = PlacementRequest(100, 120, budget_s=2.0)
    found = placement.plan(prefill, [decode], request, 0.0).pair
    assert (found.prefill.id, found.local) == ("p0", False)
