"""From one replica of each pool to four and back, while requests come all the time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import pytest
import torch

from cluster.api import Summary, Tokens
from cluster.client.admin_client import fetch_status
from engine.errors import DeadlineExceeded
from tandem_client import Client
from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MOST = 4
UP_TIMEOUT_S = 360
DOWN_TIMEOUT_S = 300
# A prefill replica is at its limit with a fifth of a second of prompts, a decode replica with three
# streams. That nothing is refused, however slow the machine is, budgets are large, and so are the
# bounds on what may wait. Up to eleven processes share two cores, so silence is no death, and what
# is to spare is not taken away before somebody has looked.
CONFIG = """
kv: {blocks: 1600, prefix_cache: false, silence_s: 20}
directory: {lease_s: 15}
prefill: {local_prefill_tokens: 0}
decode: {max_batch: 12, itl_budget_ms: 60000}
router: {kv_overcommit: 100.0}
ray: {drain_s: 120}
endpoints: {chat: {max_output_tokens: 2048, ttft_budget_ms: 600000, itl_budget_ms: 60000}}
scaling:
  prefill: {min: 1, max: 4}
  decode: {min: 1, max: 4}
  step: 3
  queue_s: 0.2
  in_use: 0.25
  pressure_hold_s: 1
  calm_s: 1
  rest_s: 0.5
  spare_s: 10
"""
# Kind of request: tokens of the prompt, and of the answer.
PROMPTS, STREAMS, LONG, SHORT = (1500, 1), (20, 300), (40, 1200), (12, 24)


class Load:
    """Requests to one front end; every answer is compared with the reference, and none may fail."""

    def __init__(self, client, expected):
        self.client = client
        self.expected = expected
        self.done = dict.fromkeys(expected, 0)
        self.replicas = set()
        self.enough = asyncio.Event()

    async def one(self, kind):
        options = {"max_tokens": kind[1], "temperature": 0, "ignore_eos": True, "timeout_s": 300}
        prompt, wanted = self.expected[kind]
        got = []
        async for event in self.client.generate(prompt, **options):
            if isinstance(event, Tokens):
                got += [token.token for token in event.tokens]
            elif isinstance(event, Summary):
                choice = event.choices[0]
                self.replicas |= {choice.prefill_replica, choice.decode_replica}
        assert got == wanted
        self.done[kind] += 1

    async def again_and_again(self, kind):
        while not self.enough.is_set():
            await self.one(kind)

    async def at_random(self, group, rate, kind):
        """Open-loop: arrivals take no notice of answers."""
        rng = random.Random(1)
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            group.create_task(self.one(kind))


@pytest.fixture(scope="module")
def expected(model):
    """A prompt of each kind, and its greedy answer."""
    answers = {}
    for seed, (prompt_tokens, new_tokens) in enumerate((PROMPTS, STREAMS, LONG, SHORT)):
        rng = random.Random(seed)
        prompt = [rng.randrange(256) for _ in range(prompt_tokens)]
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None
        )
        answers[prompt_tokens, new_tokens] = (prompt, out[0, prompt_tokens:].tolist())
    return answers


async def sizes(serving):
    """How many replicas each pool has, and how many are well: a busy one is silent for a while.

    Asked again where the busy machine is late.
    """
    while True:
        with suppress(DeadlineExceeded):
            status = await fetch_status(serving.grpc)
            break
    there = Counter(entry.role for entry in status.replicas)
    well = Counter(entry.role for entry in status.replicas if entry.healthy)
    return tuple((found["prefill"], found["decode"]) for found in (there, well))


async def until(serving, wanted, timeout_s, seen):
    began_s = time.monotonic()

    async def is_so():
        now, well = await sizes(serving)
        if not seen or seen[-1] != now:
            seen.append(now)
        return now == well == wanted

    await eventually(is_so, timeout_s, poll_s=0.5)
    return time.monotonic() - began_s


async def up_and_down(serving, expected):
    seen = []
    async with Client(serving.grpc) as client, asyncio.TaskGroup() as group:
        load = Load(client, expected)
        always = group.create_task(load.at_random(group, 2.0, SHORT))
        for _ in range(24):
            group.create_task(load.again_and_again(PROMPTS))
        for _ in range(16):
            group.create_task(load.again_and_again(STREAMS))
        up_s = await until(serving, (MOST, MOST), UP_TIMEOUT_S, seen)
        load.enough.set()
        # One for each decode replica, of which three are about to go.
        for _ in range(MOST):
            group.create_task(load.one(LONG))
        down_s = await until(serving, (1, 1), DOWN_TIMEOUT_S, seen)
        await load.one(SHORT)
        always.cancel()
    return load, seen, up_s, down_s


def test_from_one_and_one_to_four_and_four_and_back(expected, model_folder, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", str(tmp_path / "config.yaml"), folder=tmp_path) as serving:
        load, seen, up_s, down_s = asyncio.run(up_and_down(serving, expected))
    with capsys.disabled():
        print(f"\nup in {up_s:.0f} s, down in {down_s:.0f} s; {load.done}; sizes {seen}")
    assert all(load.done.values())
    # More than that have answered where a pool on its way down grew once more: requests still come.
    assert len([name for name in load.replicas if name.startswith("prefill")]) >= MOST
    assert len([name for name in load.replicas if name.startswith("decode")]) >= MOST
    # Down by one at a time.
    falling = seen[seen.index((MOST, MOST)) :]
    for before, after in pairwise(falling):
        assert before[0] - after[0] <= 1
        assert before[1] - after[1] <= 1
