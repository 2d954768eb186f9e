"""Two routers on the same ports: when one is killed, the other serves."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from contextlib import AsyncExitStack

import httpx
import pytest

from engine.errors import Cancelled, TandemError
from engine.types.sampling_params import SamplingParams
from tandem_client import Client
from tests.e2e.held import held
from tests.e2e.serving import serve
from tests.eventually import eventually
from tests.exactness import tie_of_a_draw

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
OPERATOR = "the operator's key of alice"
REPLACED_S, FOUND_S = 150, 60
# So many looks in a row reach each of the two routers, and take longer than news of a change do.
LOOKS = 5
CONFIG = """
endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}}
router: {replicas: 2}
"""


@pytest.fixture(scope="module")
def serving(model, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("routers")
    (folder / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    config = ("--config", str(folder / "config.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_OPERATOR_KEY", OPERATOR)
        with serve(*arguments, *config, folder=folder) as running:
            yield running


def routers(serving):
    return {entry["id"] for entry in serving.replicas() if entry["role"] == "router"}


async def both(serving):
    """Wait until there are two routers that know of each other and of no third; their ids.

    Each look may reach any of them, and one learns of a change later than the other.
    """
    looks = []

    def agree():
        looks.append(routers(serving))
        found = looks[-1]
        return found if len(found) == 2 and looks[-LOOKS:] == [found] * LOOKS else None

    return await eventually(lambda: asyncio.to_thread(agree), REPLACED_S, 0.1)


def left(serving):
    """Whether no connection of an earlier test is open; gRPC keeps one until it is collected."""
    gc.collect()
    return not serving.serving_me(serving.grpc)


async def replaced(serving, before):
    """Wait until another router serves in the place of one of these."""

    def is_so():
        now = routers(serving)
        return len(now) == 2 and len(now & before) == 1

    await eventually(lambda: asyncio.to_thread(is_so), REPLACED_S, 0.5)


async def test_an_operator_sees_and_stops_the_requests_of_both_routers(serving):
    """Each connection reaches any of the two routers, and all of them show and stop all."""
    names = [f"r-{number}" for number in range(15)]  # so many that each router gets some
    url = serving.http.removesuffix("/v1")
    options = {"max_tokens": 2000, "ignore_eos": True}

    async def is_stopped(request_id):
        headers = {"authorization": f"Bearer {OPERATOR}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            path = f"/console/stop?id={request_id}&tenant=default"
            found = (await http.post(path)).status_code
            assert found in (200, 404), found
            return found == 200

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(serving.grpc)) for _ in names]
        asked = zip(clients, names, strict=True)
        tasks = [
            asyncio.create_task(one.complete("hello", request_id=name, **options))
            for one, name in asked
        ]
        with held(serving):  # else some may end before they are stopped
            for name in names:  # it may not have arrived yet
                await eventually(lambda name=name: is_stopped(name), FOUND_S)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all("an operator stopped" in str(one) for one in ended), ended
        assert all(isinstance(one, TandemError) for one in ended)

    def shows_all():
        """Whether the router that answers shows all; the other one may be late."""
        listed = serving.tandem("requests")
        lines = [line.split() for line in listed.stdout.splitlines()[1:]]
        shown = {line[2] for line in lines} >= set(names)
        return shown and {line[0] for line in lines} == routers(serving)

    for _ in range(4):
        await eventually(lambda: asyncio.to_thread(shows_all), FOUND_S, 0.2)
        explained = await asyncio.to_thread(serving.tandem, "explain", names[0])
        assert f"request {names[0]}: cancelled" in explained.stdout


async def test_a_client_cancels_whichever_router_runs_its_request(serving):
    names = [f"c-{number}" for number in range(10)]
    options = {"max_tokens": 3000, "ignore_eos": True}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(serving.grpc)) for _ in names]
        asked = zip(clients, names, strict=True)
        tasks = [
            asyncio.create_task(one.complete("hello", request_id=name, **options))
            for one, name in asked
        ]
        (canceller, *_) = clients
        with held(serving):  # else some may end before they are cancelled
            for name in names:  # it may not have arrived yet
                await eventually(lambda name=name: canceller.cancel(name), FOUND_S)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, Cancelled) for one in ended), ended


async def test_resumable_streams_go_on_on_the_other_router(serving, model):
    """The killed router has the streams; their clients reconnect to the same address."""
    before = await both(serving)
    await eventually(lambda: left(serving), poll_s=0.1)
    options = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    prompts = [[number, 2, 3] for number in range(8)]
    async with Client(serving.grpc) as client:
        whole = await asyncio.gather(*(client.complete(one, **options) for one in prompts))
        asked = [client.complete(one, resumable=True, **options) for one in prompts]
        tasks = [asyncio.create_task(one) for one in asked]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in tasks)
        (router,) = serving.serving_me(serving.grpc)
        os.kill(router, signal.SIGKILL)
        found = await asyncio.wait_for(asyncio.gather(*tasks), 120)
    for prompt, got, want in zip(prompts, found, whole, strict=True):
        have, ids = ids_of(got), ids_of(want)
        same = have == ids and got.text == want.text
        sampling = SamplingParams(temperature=0.8, seed=3)
        assert same or tie_of_a_draw(model, tuple(prompt), ids, sampling, have), (have, ids)
        assert got.summary.completion_tokens == want.summary.completion_tokens > 1000
    await replaced(serving, before)


def ids_of(answer):
    return [token.token for token in answer.choices[0].tokens]


async def test_the_other_router_serves_at_once(serving):
    before = await both(serving)
    killed, other = serving.pids_of(serving.grpc)
    assert serving.pids_of(serving.http.removesuffix("/v1")) == {killed, other}
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: serving.pids_of(serving.grpc) == {other})
    for _ in range(3):
        async with Client(serving.grpc) as client, httpx.AsyncClient(timeout=60) as http:
            answer = await client.complete("hello", max_tokens=4, ignore_eos=True)
            assert answer.summary.completion_tokens == 4
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
            answer = await http.post(f"{serving.http}/completions", json=body)
            assert answer.status_code == 200
    assert serving.pids_of(serving.grpc) == {other}, "the requests came after the next router"
    await replaced(serving, before)
    assert other in serving.pids_of(serving.grpc)
