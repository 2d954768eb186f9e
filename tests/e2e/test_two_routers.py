"""Two routers on the same ports: when one is killed, the other serves."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest

from engine.types.sampling_params import SamplingParams
from tandem_client import Client
from tests.e2e.serving import serve
from tests.eventually import eventually
from tests.exactness import tie_of_a_draw

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIG = """
endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}}
router: {replicas: 2}
"""


@pytest.fixture
def serving(model, model_folder, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", str(tmp_path / "config.yaml"), folder=tmp_path) as running:
        yield running


def routers(serving):
    return {entry["id"] for entry in serving.replicas() if entry["role"] == "router"}


async def test_resumable_streams_go_on_on_the_other_router(serving, model):
    """The killed router has the streams; their clients reconnect to the same address."""
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
        found = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    for prompt, got, want in zip(prompts, found, whole, strict=True):
        have, ids = ids_of(got), ids_of(want)
        same = have == ids and got.text == want.text
        sampling = SamplingParams(temperature=0.8, seed=3)
        assert same or tie_of_a_draw(model, tuple(prompt), ids, sampling, have), (have, ids)
        assert got.summary.completion_tokens == want.summary.completion_tokens > 1000


def ids_of(answer):
    return [token.token for token in answer.choices[0].tokens]


async def test_the_other_router_serves_at_once(serving):
    before = routers(serving)
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

    def replaced():
        now = routers(serving)
        return len(now) == 2 and len(now & before) == 1

    await eventually(lambda: asyncio.to_thread(replaced), 90, 0.5)
    assert other in serving.pids_of(serving.grpc)
