"""Devices of their own: a prompt is planned once, without urgency. On a shared one it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.placement import prompt_forecast, shared_cores
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.types.urgency import Urgency

LOAD = ReplicaLoad(blocks_total=1000, block_size=16)


def replica(role, device):
    return ReplicaRecord(role[0], role, "", 1, load=LOAD, device=device)


def request(tokens, **more):
    return PlacementRequest(tokens, tokens + 10, budget_s=1.0, itl_s=0.06, **more)


@pytest.fixture
def placement():
    """The replicas compute 1,000 prompt tokens a second; there is a stream on "d"."""
    placement = Placement(local_prefill_tokens=100, decode_batch=8)
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
    found = placement.plan([prefill], [decode], request(tokens), 0.0, least=least)
    assert len(forecasts) == 1
    assert (found.forecast.ttft_s < 1.0) is (tokens == 200)
    assert found.forecast.urgency is Urgency.NONE
    load = placement.add_load(found, request(tokens), 0.0)
    placement.computed("p", tokens, 0, 0.2, 0.3, found.forecast.urgency)
    for share in load:
        share.release()


@pytest.mark.usefixtures("closed")
def test_local_prefill_on_a_device_of_its_own_has_no_urgency(placement):
    prefill, decode = replica("prefill", "gpu-1"), replica("decode", "gpu-2")
    digests = [bytes([place]) for place in range(12)]
    placement.learn(decode, digests)
    prompt = request(200, digests=digests)
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
    found = placement.plan([prefill], [decode], request(tokens), 0.0)
    assert (found.forecast.urgency, len(forecasts)) == (Urgency.PROMPTS, times)
    resumed = placement.plan_resume([prefill], [decode], request(200), 0.0)
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
    found = placement.plan(*pools, request(200), 0.0, least=Urgency.PRESSED)
    assert found.forecast.urgency is urgency


def test_a_replica_that_decodes_too_shares_its_device_with_its_streams(placement):
    both = replica("both", "gpu-1")
    other = replace(replica("decode", "gpu-2"), id="d")
    placement.load_tracker.request("b", 10, 0.06)
    found = placement.plan([both], [both, other], request(200), 0.0, least=Urgency.PRESSED)
    assert found.forecast.urgency is Urgency.PRESSED
