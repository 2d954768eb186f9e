"""Placement: pure, so by example and by property."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.placement import placement
from cluster.placement.prefill_backlog import PlacedPrompt
from cluster.placement.types import Forecast, Pair, PlacementPlan, PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.errors import PromptTooLong, Unavailable
from engine.types.urgency import Urgency


def replica(name: str, role: str, blocks: int = 100, **load: int) -> ReplicaRecord:
    return ReplicaRecord(
        id=name,
        role=role,
        address="127.0.0.1:1",
        generation=1,
        load=ReplicaLoad(blocks_total=blocks, block_size=16, **load),
    )


class Placement(placement.Placement):
    """Short forms, for requests without budgets."""

    def choose(self, prefill, decode, prompt_tokens, most_tokens, digests=()):
        return self.plan(
            prefill, decode, PlacementRequest(prompt_tokens, most_tokens, digests), 0.0
        ).pair

    def held(self, record, tokens):
        ask = PlacementRequest(tokens, tokens + 1, budget_s=1.0)
        pair = Pair(record, record)
        return self.add_load(PlacementPlan(pair, Forecast(0.0, 1.0)), ask, 0.0)


def test_least_loaded_wins_and_ties_rotate():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode", running=5), replica("d1", "decode")]
    chooser = Placement()
    first = chooser.choose(pool, decode, 10, 20)
    held = chooser.held(first.prefill, 10)
    second = chooser.choose(pool, decode, 10, 20)
    assert {first.prefill.id, second.prefill.id} == {"p0", "p1"}
    assert first.decode.id == "d1"
    for share in (*held, *held):
        share.release()
    assert chooser.choose(pool, decode, 10, 20).prefill.id == second.prefill.id


def test_prefill_counts_tokens_and_not_requests():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode")]
    chooser = Placement()
    chooser.held(pool[0], 1000)
    for _ in range(3):
        chooser.held(pool[1], 10)
    assert chooser.choose(pool, decode, 500, 520).prefill.id == "p1"


def test_small_pools_are_passed_over_and_both_numbers_are_named():
    small, large = replica("d0", "decode", blocks=2), replica("d1", "decode", blocks=50)
    prefill = [replica("p0", "prefill")]
    assert Placement().choose(prefill, [small, large], 10, 40).decode.id == "d1"
    with pytest.raises(PromptTooLong, match=r"40 tokens do not fit the decode pool.*32"):
        Placement().choose(prefill, [small], 10, 40)


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_an_empty_pool_is_unavailable_and_says_when_to_retry(missing):
    pools = {"prefill": [replica("p", "prefill")], "decode": [replica("d", "decode")], missing: []}
    with pytest.raises(Unavailable, match=missing) as refusal:
        Placement().choose(pools["prefill"], pools["decode"], 1, 1)
    assert refusal.value.retry_after_s


def test_prefill_goes_where_the_least_is_left_to_compute():
    pool = [replica("p0", "prefill"), replica("p1", "prefill")]
    decode = [replica("d0", "decode")]
    chooser = Placement()
    digests = [bytes([number]) for number in range(6)]
    chooser.learn(pool[1], digests[:4])
    for _ in range(3):
        pair = chooser.choose(pool, decode, 100, 120, digests)
        assert (pair.prefill.id, pair.cached_tokens) == ("p1", 64)
    for _ in range(2):
        chooser.held(pool[1], 65)
    pair = chooser.choose(pool, decode, 100, 120, digests)
    assert (pair.prefill.id, pair.cached_tokens) == ("p0", 0)


def test_the_last_token_of_a_prompt_is_never_expected_in_a_cache():
    pool, decode = [replica("p0", "prefill")], [replica("d0", "decode")]
    chooser = Placement()
    chooser.learn(pool[0], [b"0", b"1"])
    assert chooser.choose(pool, decode, 32, 40, [b"0", b"1"]).cached_tokens == 16
    assert chooser.choose(pool, decode, 33, 40, [b"0", b"1"]).cached_tokens == 32


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
def test_a_short_rest_is_computed_where_the_chat_was_decoded(
    local_prefill_tokens, prompt, on_prefill, running, local
):
    pool = [replica("p0", "prefill")]
    decode = [replica("d0", "decode"), replica("d1", "decode", running=running)]
    chooser = Placement(local_prefill_tokens, decode_batch=8)
    digests = [bytes([number]) for number in range(5)]
    chooser.learn(decode[1], digests[:4])
    chooser.learn(pool[0], digests[:on_prefill])
    pair = chooser.choose(pool, decode, prompt, 100, digests)
    assert pair.local is local
    if local:
        assert (pair.prefill.id, pair.decode.id, pair.cached_tokens) == ("d1", "d1", 64)
    else:
        assert pair.prefill.id == "p0"


@pytest.mark.parametrize(
    ("devices", "local"),
    [(("", ""), True), (("cores-1", "cores-2"), True), (("cores-1", "cores-1"), False)],
)
def test_decode_is_lent_to_short_prompts_where_it_has_a_device_of_its_own(devices, local):
    prefill = replace(replica("p0", "prefill"), device=devices[0])
    decode = replace(replica("d0", "decode"), device=devices[1])
    chooser = Placement(local_prefill_tokens=256, decode_batch=8)
    for record in (prefill, decode):
        for second in range(-20, 0):
            chooser.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    for _ in range(3):
        chooser.held(prefill, 320)  # all due in a second
    ask = PlacementRequest(100, 120, budget_s=2.0)
    pair = chooser.plan([prefill], [decode], ask, 0.0).pair
    assert (pair.local, pair.own_device) == (local, local)
    digests = [bytes([number]) for number in range(6)]
    cached = replace(ask, digests=digests)
    chooser.learn(decode, digests[:1])
    # A little of it is cached there, then most of it.
    assert chooser.plan([prefill], [decode], cached, 0.0).pair.local is local
    chooser.learn(decode, digests)
    pair = chooser.plan([prefill], [decode], cached, 0.0).pair
    assert (pair.local, pair.own_device) == (True, local)


@pytest.mark.parametrize(
    ("running", "on_prefill", "least", "lent"),
    [
        (1, 0, Urgency.PROMPTS, True),
        (0, 0, Urgency.PROMPTS, False),  # nobody computes: prefill may as well
        (1, 10, Urgency.PROMPTS, False),  # both would compute
        (1, 0, Urgency.PRESSED, False),  # prefill will compute at once
        (1, 0, Urgency.URGENT, False),
    ],
)
def test_a_device_that_both_share_serves_one_of_them(running, on_prefill, least, lent):
    chooser, prefill, decode = sharing(running)
    if on_prefill:
        chooser.held(prefill, on_prefill)
    ask = PlacementRequest(100, 120, budget_s=10.0)
    pair = chooser.plan([prefill], [decode], ask, 0.0, least=least).pair
    assert (pair.local, pair.own_device) == (lent, False)
    digests = [bytes([number]) for number in range(6)]
    chooser.learn(prefill, digests[:1])
    cached = replace(ask, digests=digests)
    assert not chooser.plan([prefill], [decode], cached, 0.0, least=least).pair.local


def test_what_others_placed_keeps_a_device_busy_and_a_second_replica_does():
    chooser, prefill, decode = sharing(running=1)
    ask = PlacementRequest(100, 120, budget_s=10.0)
    told = replace(prefill, load=replace(prefill.load, prompt_tokens_due=300))
    assert not chooser.plan([told], [decode], ask, 0.0).pair.local
    second = replace(prefill, id="p1")
    chooser.held(second, 300)
    assert not chooser.plan([prefill, second], [decode], ask, 0.0).pair.local
    assert chooser.plan([prefill], [decode], ask, 0.0).pair.local


def test_nothing_is_lent_where_prefill_has_a_device_that_nobody_uses():
    """Two hosts with a replica of each kind, and streams on one."""
    chooser, prefill, decode = sharing(running=1)
    idle = [
        replace(replica(f"{kind[0]}1", kind), device="others") for kind in ("prefill", "decode")
    ]
    for second in range(-20, 0):
        chooser.costs.prefill("p1").learn(300, 0, 0.25, float(second))
    pair = chooser.plan([prefill, idle[0]], [decode, idle[1]], PlacementRequest(100, 120), 0.0).pair
    assert (pair.prefill.id, pair.local) == ("p1", False)


def test_a_prompt_is_lent_behind_no_longer_one():
    chooser, prefill, decode = sharing(running=1)
    ask = PlacementRequest(100, 120, budget_s=100.0)
    chooser.held(decode, 50)
    assert chooser.plan([prefill], [decode], ask, 0.0).pair.local
    chooser.held(decode, 200)
    assert not chooser.plan([prefill], [decode], ask, 0.0).pair.local


@pytest.mark.parametrize("waiting", [0, 50])
def test_a_prompt_is_lent_where_it_is_in_time_beside_a_prefill_replica(waiting):
    """One that begins to compute takes half of what they share."""
    chooser, prefill, decode = sharing(running=1)
    if waiting:
        chooser.held(decode, waiting)
    ask = PlacementRequest(100, 120, budget_s=10.0)
    alone_s = chooser.plan([prefill], [decode], ask, 0.0).forecast.ttft_s
    for times, lent in ((1.8, False), (2.2, True)):
        hurried = replace(ask, budget_s=times * alone_s)
        assert chooser.plan([prefill], [decode], hurried, 0.0).pair.local is lent


def sharing(running):
    """A placement, a prefill and a decode replica with one device, at some speed."""
    prefill = replace(replica("p0", "prefill"), device="cores")
    decode = replace(replica("d0", "decode", running=running), device="cores")
    chooser = Placement(local_prefill_tokens=256, decode_batch=8)
    for record in (prefill, decode):
        for second in range(-20, 0):
            chooser.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    return chooser, prefill, decode


def test_decode_is_lent_nothing_beside_a_prefill_replica_that_is_not_the_best():
    """It would slow that one."""
    prefill = [replace(replica(f"p{n}", "prefill"), device=f"cores-{n}") for n in (0, 1)]
    decode = replace(replica("d0", "decode"), device="cores-1")
    chooser = Placement(local_prefill_tokens=256, decode_batch=8)
    for record in (*prefill, decode):
        for second in range(-20, 0):
            chooser.costs.prefill(record.id).learn(300, 0, 0.3, float(second))
    for _ in range(3):
        chooser.held(prefill[0], 320)
        chooser.held(prefill[1], 330)
    ask = PlacementRequest(100, 120, budget_s=2.0)
    found = chooser.plan(prefill, [decode], ask, 0.0).pair
    assert (found.prefill.id, found.local) == ("p0", False)


def test_what_is_known_is_bounded_and_ends_with_the_replica():
    pool = [replica("p0", "prefill", blocks=10)]
    decode = [replica("d0", "decode")]
    chooser = Placement()

    def known(digests):
        return chooser.choose(pool, decode, 100, 120, digests).cached_tokens // 16

    old, new = [b"a%d" % n for n in range(6)], [b"b%d" % n for n in range(6)]
    chooser.learn(pool[0], old)
    chooser.learn(pool[0], new)
    assert (known(old), known(new)) == (4, 6)
    chooser.forget(["d0"])
    assert known(new) == 0


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_requests_spread_evenly(holds, prefills, decodes):
    chooser = Placement()
    prefill = [replica(f"p{i}", "prefill") for i in range(prefills)]
    decode = [replica(f"d{i}", "decode") for i in range(decodes)]
    placed = []
    for hold in holds:
        if hold or not placed:
            pair = chooser.choose(prefill, decode, 10, 20)
            for record in (pair.prefill, pair.decode):
                chooser.held(record, 10)
            placed.append(pair)
    counts = [sum(pair.decode.id == record.id for pair in placed) for record in decode]
    assert max(counts) - min(counts) <= 1


def of(version, name, role):
    return replace(replica(name, role), kv_identity=version)


VERSIONS = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


@settings(deadline=None)
@given(VERSIONS, VERSIONS, st.integers(0, 10**6))
def test_kv_never_goes_from_one_version_to_another(first, second, tokens):
    prefill = [of(version, f"p{place}", "prefill") for place, version in enumerate(first)]
    decode = [of(version, f"d{place}", "decode") for place, version in enumerate(second)]
    chooser = Placement(local_prefill_tokens=20, decode_batch=4)
    for _ in range(8):
        if not set(first) & set(second):
            with pytest.raises(Unavailable, match="same weights"):
                chooser.choose(prefill, decode, 1 + tokens % 100, 120)
            break
        pair = chooser.choose(prefill, decode, 1 + tokens % 100, 120)
        assert pair.prefill.kv_identity == pair.decode.kv_identity
        chooser.held(pair.prefill, 100)


def learned(chooser, name):
    """The costs of a replica that streams slow down by three, and by less the longer they wait."""
    cost = chooser.costs.prefill(name)
    token_s = dict(zip(Urgency, (0.001, 0.003, 0.002, 0.0015), strict=True))
    for place in range(200):
        urgency, tokens = Urgency(place % 4), 100 + place
        cost.learn(tokens, 0, tokens * token_s[urgency], 5.0 * (place - 200), urgency=urgency)
    return chooser


def test_streams_wait_for_a_prompt_as_long_as_it_needs_to_be_in_time():
    pool, decode = [replica("p", "prefill")], [replica("d", "decode")]
    chooser = learned(Placement(), "p")

    def urgency_of(tokens: int, least: Urgency = Urgency.PROMPTS, **more) -> Urgency:
        ask = PlacementRequest(tokens, tokens + 10, budget_s=1.0, itl_s=0.06, **more)
        return chooser.plan(pool, decode, ask, 0.0, least=least).forecast.urgency

    assert urgency_of(500) is Urgency.NONE
    stream = chooser.load_tracker.request("d", 10, 0.06)
    assert [urgency_of(tokens) for tokens in (200, 400, 500)] == list(Urgency)[1:]
    assert urgency_of(200, Urgency.PRESSED) is Urgency.PRESSED
    assert urgency_of(500, Urgency.PRESSED) is urgency_of(200, Urgency.URGENT) is Urgency.URGENT
    assert (
        urgency_of(500, batch=True)
        is urgency_of(500, Urgency.URGENT, batch=True)
        is Urgency.PROMPTS
    )
    assert urgency_of(1500) is Urgency.PROMPTS  # it needs its time, however the streams wait
    # Work of the batch lane presses nobody, and is not pressed by who came before it.
    hurried = chooser.load_tracker.prompt("p", PlacedPrompt(300, urgency=Urgency.URGENT), 0.0)
    assert urgency_of(100) is Urgency.PRESSED
    assert urgency_of(100, batch=True) is Urgency.PROMPTS
    batch = chooser.load_tracker.prompt(
        "p", PlacedPrompt(300, batch=True, urgency=Urgency.PRESSED), 0.0
    )
    hurried.release()
    assert urgency_of(100) is Urgency.PROMPTS
    batch.release()
    stream.release()
    assert urgency_of(500) is Urgency.NONE


def test_streams_keep_their_gap_beside_a_prompt_that_they_are_cached_with():
    prefill, decode = replica("p", "prefill"), replica("d", "decode")
    chooser = learned(Placement(local_prefill_tokens=100, decode_batch=4), "p")
    chooser.load_tracker.request("d", 10, 0.06)
    digests = [bytes([place]) for place in range(500 // 16)]
    ask = PlacementRequest(500, 510, digests, budget_s=1.0, itl_s=0.06)
    assert chooser.plan([prefill], [decode], ask, 0.0).forecast.urgency is Urgency.URGENT
    chooser.learn(decode, digests)
    plan = chooser.plan([prefill], [decode], ask, 0.0)
    assert (plan.pair.local, plan.forecast.urgency) == (True, Urgency.PROMPTS)


def test_what_is_late_even_so_is_told_how_late_it_is_at_best():
    prefill, decode = replica("p", "prefill"), replica("d", "decode")
    chooser = learned(Placement(), "p")
    chooser.load_tracker.request("d", 10, 0.06)
    for _ in range(2):
        chooser.load_tracker.prompt(
            "p", PlacedPrompt(250, urgency=Urgency.PROMPTS, deadline_s=1.0), 0.0
        )
    forecast = chooser.plan(
        [prefill], [decode], PlacementRequest(300, 310, budget_s=1.0), 0.0
    ).forecast
    assert (forecast.feasible, forecast.urgency) == (False, Urgency.URGENT)
    assert forecast.ttft_s == pytest.approx(1.2, abs=0.1)
