"""A real Ray cluster whose pools go to zero: the next request wakes them."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from cluster.api import Progress, Tokens
from tandem_client import Client
from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

SLEEP_TIMEOUT_S = 120
CONFIG = """
kv: {blocks: 400}
prefill: {replicas: 0}
directory: {lease_s: 10}
endpoints: {batch: {lane: batch, max_output_tokens: 256}}
scaling:
  decode: {min: 0, max: 1}
  idle_s: 2
  rest_s: 0.5
"""


@pytest.fixture(scope="module")
def expected(model):
    rng = random.Random(1)
    prompt = [rng.randrange(256) for _ in range(50)]
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    return prompt, out[0, 50:].tolist()


async def ask(client, expected):
    """The stages that were told before the answer."""
    prompt, wanted = expected
    got, stages = [], []
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "progress": True}
    async for event in client.generate(prompt, timeout_s=200, **options):
        if isinstance(event, Tokens):
            got += [token.token for token in event.tokens]
        elif isinstance(event, Progress):
            stages.append(event.stage)
    assert got == wanted
    return stages


async def asleep(serving):
    def is_so():
        return all(one["role"] == "router" for one in serving.replicas())

    await eventually(lambda: asyncio.to_thread(is_so), SLEEP_TIMEOUT_S, poll_s=0.5)


def is_well(serving):
    """Asleep is well."""
    return serving.tandem("status").returncode == 0


async def sleep_and_wake(serving, expected):
    async with Client(serving.grpc) as client:
        for _ in range(2):
            await asleep(serving)
            await eventually(lambda: asyncio.to_thread(is_well, serving), SLEEP_TIMEOUT_S, 0.5)
            stages = await ask(client, expected)
            assert stages[0] == "starting"
            assert "starting" not in await ask(client, expected)


def test_an_idle_pool_goes_to_zero_and_a_request_wakes_it(expected, model_folder, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", str(tmp_path / "config.yaml"), folder=tmp_path) as serving:
        asyncio.run(sleep_and_wake(serving, expected))
