"""Devices of their own: a prompt is planned once, without urgency. On a shared one it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.placement import prompt_forecast, shared_cores
from cluster.placement.placement import Placement
from cluster.placement.prefill_backlog import PlacedPrompt
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.types.urgency import Urgency

LOAD = ReplicaLoad(blocks_total=1000, block_size=16)


def replica(role, device):
    return ReplicaRecord(role[0], role, "", 1, load=LOAD, device=device)


def budgeted(tokens, **more):
    return PlacementRequest(tokens, tokens + 10, budget_s=1.0, itl_s=0.06, **more)


@pytest.fixture
def placement():
    """The replicas compute 1,000 prompt tokens a second; there is a stream on "d"."""
    placement = Placement(local_prefill_tokens=100)
    for name in ("p", "d"):
        for place in range(20):
            placement.costs.prefill(name).learn(300, 0, 0.3, float(place - 20))
    placement.load_tracker.request("d", 10, 0.06)
    return placement


@pytest.fixture
def forecasts(monkeypatch):
    """The prompts that were forecast, one entry for each time."""
    made = []

    def forecast_prompt(waiting, new, *more):
        made.append(new)
        return original(waiting, new, *more)

    original = prompt_forecast.forecast_prompt
    monkeypatch.setattr(prompt_forecast, "forecast_prompt", forecast_prompt)
    return made


@pytest.fixture
def closed(monkeypatch):
    """Whatever enters the module for shared devices fails."""

    def entered(*_args, **_more):
        raise AssertionError("entered")

    for name in ("least_urgent", "device_use", "is_local_prefill", "StreamSlowdown"):
        monkeypatch.setattr(shared_cores, name, entered)
    monkeypatch.setattr("cluster.placement.cost_model.StreamSlowdown", entered)


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("least", list(Urgency)[1:])
@pytest.mark.parametrize("tokens", [200, 5000])
def test_on_devices_of_their_own_a_prompt_is_planned_once(placement, forecasts, tokens, least):
    """A prompt within its budget, and a prompt that no urgency brings into its budget."""
    prefill, decode = replica("prefill", "gpu-1"), replica("decode", "gpu-2")
    found = placement.plan([prefill], [decode], budgeted(tokens), 0.0, least=least)
    assert len(forecasts) == 1
    assert (found.forecast.ttft_s < 1.0) is (tokens == 200)
    assert found.forecast.urgency is Urgency.NONE
    load = placement.add_load(found, budgeted(tokens), 0.0)
    placement.computed("p", tokens, 0, 0.2, 0.3, found.forecast.urgency)
    for share in load:
        share.release()


@pytest.mark.usefixtures("closed")
def test_local_prefill_on_a_device_of_its_own_has_no_urgency(placement):
    prefill, decode = replica("prefill", "gpu-1"), replica("decode", "gpu-2")
    digests = [bytes([place]) for place in range(12)]
    placement.learn(decode, digests)
    prompt = budgeted(200, digests=digests)
    found = placement.plan([prefill], [decode], prompt, 0.0, least=Urgency.URGENT)
    assert (found.pair.local, found.pair.own_device) == (True, True)
    assert found.forecast.urgency is Urgency.NONE
    resumed = placement.plan_resume([prefill], [decode], prompt, 0.0)
    assert resumed.forecast.urgency is Urgency.NONE


@pytest.mark.parametrize(("tokens", "times"), [(200, 1), (5000, 3)])
def test_on_a_shared_device_it_is_planned_until_it_is_in_its_budget(
    placement, forecasts, tokens, times
):
    prefill, decode = replica("prefill", "cores"), replica("decode", "cores")
    found = placement.plan([prefill], [decode], budgeted(tokens), 0.0)
    assert (found.forecast.urgency, len(forecasts)) == (Urgency.PROMPTS, times)
    resumed = placement.plan_resume([prefill], [decode], budgeted(200), 0.0)
    assert resumed.forecast.urgency is Urgency.PROMPTS


@pytest.mark.parametrize(
    ("prefill", "decode", "urgency"),
    [
        ("gpu-1", "gpu-2", Urgency.NONE),
        ("gpu-1", "gpu-1", Urgency.PRESSED),
        ("gpu-1", "", Urgency.NONE),
        ("", "", Urgency.PRESSED),  # nothing says that they do not share one
    ],
)
def test_replicas_share_the_device_that_both_name(placement, prefill, decode, urgency):
    pools = [replica("prefill", prefill)], [replica("decode", decode)]
    found = placement.plan(*pools, budgeted(200), 0.0, least=Urgency.PRESSED)
    assert found.forecast.urgency is urgency


def test_a_replica_that_decodes_too_shares_its_device_with_its_streams(placement):
    both = replica("both", "gpu-1")
    other = replace(replica("decode", "gpu-2"), id="d")
    placement.load_tracker.request("b", 10, 0.06)
    found = placement.plan([both], [both, other], budgeted(200), 0.0, least=Urgency.PRESSED)
    assert found.forecast.urgency is Urgency.PRESSED


def learned(placement, name):
    """The costs of a replica that streams slow down by three, and by less the longer they wait."""
    cost = placement.costs.prefill(name)
    token_s = dict(zip(Urgency, (0.001, 0.003, 0.002, 0.0015), strict=True))
    for place in range(200):
        urgency, tokens = Urgency(place % 4), 100 + place
        cost.learn(tokens, 0, tokens * token_s[urgency], 5.0 * (place - 200), urgency=urgency)
    return placement


def test_streams_wait_for_a_prompt_as_long_as_it_needs_to_be_on_time():
    pool, decode = [replica("prefill", "")], [replica("decode", "")]
    placement = learned(Placement(), "p")

    def urgency_of(tokens: int, least: Urgency = Urgency.PROMPTS, **more) -> Urgency:
        request = PlacementRequest(tokens, tokens + 10, budget_s=1.0, itl_s=0.06, **more)
        return placement.plan(pool, decode, request, 0.0, least=least).forecast.urgency

    assert urgency_of(500) is Urgency.NONE
    stream = placement.load_tracker.request("d", 10, 0.06)
    assert [urgency_of(tokens) for tokens in (200, 400, 500)] == list(Urgency)[1:]
    assert urgency_of(200, Urgency.PRESSED) is Urgency.PRESSED
    assert urgency_of(500, Urgency.PRESSED) is urgency_of(200, Urgency.URGENT) is Urgency.URGENT
    assert (
        urgency_of(500, batch=True)
        is urgency_of(500, Urgency.URGENT, batch=True)
        is Urgency.PROMPTS
    )
    assert urgency_of(1500) is Urgency.PROMPTS  # it needs its time, however the streams wait
    # Batch prompts press no prompt, and earlier prompts do not press them.
    hurried = placement.load_tracker.prompt("p", PlacedPrompt(300, urgency=Urgency.URGENT), 0.0)
    assert urgency_of(100) is Urgency.PRESSED
    assert urgency_of(100, batch=True) is Urgency.PROMPTS
    batch = placement.load_tracker.prompt(
        "p", PlacedPrompt(300, batch=True, urgency=Urgency.PRESSED), 0.0
    )
    hurried.release()
    assert urgency_of(100) is Urgency.PROMPTS
    batch.release()
    stream.release()
    assert urgency_of(500) is Urgency.NONE


def test_local_prefill_of_a_cached_prompt_lets_streams_keep_their_latency():
    prefill, decode = replica("prefill", ""), replica("decode", "")
    placement = learned(Placement(local_prefill_tokens=100), "p")
    placement.load_tracker.request("d", 10, 0.06)
    digests = [bytes([place]) for place in range(500 // 16)]
    request = PlacementRequest(500, 510, digests, budget_s=1.0, itl_s=0.06)
    assert placement.plan([prefill], [decode], request, 0.0).forecast.urgency is Urgency.URGENT
    placement.learn(decode, digests)
    plan = placement.plan([prefill], [decode], request, 0.0)
    assert (plan.pair.local, plan.forecast.urgency) == (True, Urgency.PROMPTS)


def test_the_forecast_of_a_late_prompt_is_that_of_the_highest_urgency():
    prefill, decode = replica("prefill", ""), replica("decode", "")
    placement = learned(Placement(), "p")
    placement.load_tracker.request("d", 10, 0.06)
    for _ in range(2):
        placement.load_tracker.prompt(
            "p", PlacedPrompt(250, urgency=Urgency.PROMPTS, deadline_s=1.0), 0.0
        )
    forecast = placement.plan(
        [prefill], [decode], PlacementRequest(300, 310, budget_s=1.0), 0.0
    ).forecast
    assert (forecast.feasible, forecast.urgency) == (False, Urgency.URGENT)
    assert forecast.ttft_s == pytest.approx(1.2, abs=0.1)
