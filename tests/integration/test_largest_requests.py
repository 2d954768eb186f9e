"""Whatever 4 MiB hold: other clients wait for no request, and nobody but its client is to blame.

The bystander's promise is a pause of half a second at most. It is measured in the time of the event
loop's own thread, so that a busy machine does not matter.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import partial

import grpc
import pytest

from cluster.router import phases
from cluster.router.failover import Failover
from tests.integration.largest_requests import CHAT, GRPC, HTTP, MOST_BYTES, TEXT, Stranger
from tests.integration.local import cluster
from tests.loop_pauses import pause_of
from tests.metrics_page import recorded

MOST_S = 0.5
GENERATE, SCORE = "/tandem.v1.Inference/Generate", "/tandem.v1.Inference/Score"


@pytest.fixture
async def local(config):
    async with cluster(config) as found:
        yield found


async def test_no_body_stops_the_router(local):
    stranger = Stranger(local.router)
    bystander = asyncio.create_task(local.client.complete("hello", max_tokens=400, ignore_eos=True))
    for name, (path, make) in HTTP.items():
        body = make()
        assert len(body) <= MOST_BYTES
        pauses, [(status, text)] = await pause_of([partial(stranger.post, path, body)])
        assert status == 400, (name, text[:200])
        assert pauses.longest_s <= MOST_S, name
        # Where the whole document is beyond a bound, the field is the one that is read then.
        assert json.loads(text)["error"]["param"], (name, text[:200])
    assert len((await bystander).choices[0].tokens) == 400


async def test_no_message_stops_the_router(local):
    stranger = Stranger(local.router)
    for name, make in GRPC.items():
        method, message = SCORE if name == "score" else GENERATE, make()
        assert len(message) <= MOST_BYTES
        pauses, [(code, text)] = await pause_of([partial(stranger.call, method, message)])
        assert code is grpc.StatusCode.INVALID_ARGUMENT, (name, text)
        assert len(text) < 1000
        assert pauses.longest_s <= MOST_S, name
    for path, unit in ((TEXT, "[1],"), (CHAT, "{},")):
        field = "prompt" if path == TEXT else "messages"
        body = f'{{"{field}":[{unit * 900_000}{unit[:-1]}]}}'.encode()
        pauses, [(status, text)] = await pause_of([partial(stranger.send, path, body)])
        assert status == 400, text
        assert pauses.longest_s <= MOST_S, path


async def test_ten_at_once_do_not_stop_it_either(local):
    stranger = Stranger(local.router)
    works = [
        *(
            partial(stranger.post, *_made(name))
            for name in ("prompts of one token", "stop_token_ids", "messages", "an unknown field")
        ),
        *(
            partial(stranger.call, GENERATE, GRPC[name]())
            for name in ("messages", "token ids", "logit_bias", "stop")
        ),
        partial(stranger.post, *_made("prompts of a letter")),
        partial(stranger.post, TEXT, _legal()),
    ]
    pauses, results = await pause_of(works)
    assert results[-1][0] == 200, results[-1]
    assert all(status in (400, grpc.StatusCode.INVALID_ARGUMENT) for status, _ in results[:-1])
    assert pauses.longest_s <= MOST_S


async def test_huge_numbers_are_the_fault_of_the_client(local):
    stranger = Stranger(local.router)
    fields = ("max_tokens", "top_k", "seed", "n", "temperature", "logprobs", "best_of")
    with recorded() as seen:
        for field in fields:
            body = json.dumps({"prompt": "a", field: 10**400}).encode()
            _, [(status, text)] = await pause_of([partial(stranger.post, TEXT, body)])
            assert (status, json.loads(text)["error"]["param"]) == (400, field)
        ended = {labels["outcome"] for labels, _ in seen.series("tandem_requests_total")}
        assert ended <= {"InvalidRequest"}
        assert {labels["error"] for labels, _ in seen.series("tandem_front_end_errors_total")} == {
            "InvalidRequest"
        }


async def test_large_choices_begin_one_after_another(local, monkeypatch):
    monkeypatch.setattr(phases, "LARGE_TOKENS", 1)
    passes, begun, run = itertools.count(), [], Failover.run
    now = [0]

    async def count() -> None:
        while True:
            now[0] = next(passes)
            await asyncio.sleep(0)

    async def noted(failover, *rest):
        begun.append(now[0])
        return await run(failover, *rest)

    monkeypatch.setattr(Failover, "run", noted)
    counting = asyncio.create_task(count())
    await local.client.complete("hello", n=8, max_tokens=1)
    counting.cancel()
    assert len(begun) == len(set(begun)) == 8


def _made(name: str) -> tuple[str, bytes]:
    path, make = HTTP[name]
    return path, make()


def _legal() -> bytes:
    """The largest lists that are allowed, for each of 128 choices."""
    body = {
        "prompt": [7] * 40,
        "n": 128,
        "max_tokens": 4,
        "logprobs": 20,
        "stop": ["x" * 1024] * 16,
        "stop_token_ids": list(range(300)),
        "logit_bias": {str(token): 1 for token in range(300)},
    }
    return json.dumps(body).encode()
