"""Prompts, answers and keys appear in no log, metric or status, whatever becomes of a request."""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager, suppress
from dataclasses import replace

import httpx
import pytest
from prometheus_client import generate_latest

from cluster.telemetry.logging_setup import LineFormatter
from cluster.tenants.api_keys import hash_of
from engine.errors import TandemError
from engine.runtime.engine_thread import EngineWorker
from tandem_client import Client
from tests.integration.local import cluster
from tests.metrics_page import recorded

SECRET = "swordfish-7Q"
KEY = "sk-hushhush-1234567890"
TOKENS = [211, 17, 199, 23, 181]


@contextmanager
def everything_logged():
    """All log lines of all loggers, fields and tracebacks with them, as one text."""
    text = io.StringIO()
    writer = logging.StreamHandler(text)
    writer.setFormatter(LineFormatter())
    root = logging.getLogger()
    named = [root, *(logging.getLogger(name) for name in ("cluster", "engine", "kv_transfer"))]
    named += [logging.getLogger(name) for name in ("decode_pool", "prefill_pool", "uvicorn")]
    before = [(logger, logger.level) for logger in named]
    root.addHandler(writer)
    for logger in named:
        logger.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(writer)
        for logger, level in before:
            logger.setLevel(level)


# Bodies that are served, and bodies that are refused in each part that has a user's text.
BODIES = [
    {"prompt": SECRET, "max_tokens": 4},
    {"prompt": [*TOKENS], "max_tokens": 4},
    {"prompt": SECRET, "max_tokens": 4, "stop": [SECRET], "logprobs": 2, "echo": True},
    {"prompt": SECRET * 3000},
    {"prompt": {SECRET: 1}},
    {"prompt": [SECRET, 5]},
    {"prompt": SECRET, "stop": {"a": SECRET}},
    {"prompt": SECRET, "stop": [SECRET] * 100},
    {"prompt": SECRET, "max_tokens": SECRET},
    {"prompt": SECRET, "logit_bias": {SECRET: 1}},
    {"prompt": SECRET, "endpoint": "nowhere"},
    {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4},
    {"messages": [{"role": SECRET, "content": SECRET}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": {SECRET: 1}}]}]},
    {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
    {"messages": SECRET},
]
SAID = [{"role": "user", "content": SECRET}]
_CALL = {"type": "tool_use", "id": "c", "name": SECRET, "input": {SECRET: SECRET}}
MESSAGES = [
    {"messages": SAID},
    {"messages": SAID, "system": SECRET, "metadata": {"user_id": SECRET}},
    {"messages": SAID, "stop_sequences": [SECRET] * 100},
    {"messages": [{"role": "assistant", "content": [_CALL]}, *SAID]},
    {"messages": SAID, "tools": [{"name": SECRET, "input_schema": {"type": SECRET}}]},
    {"messages": SAID, SECRET: 1},
    {"messages": [{"role": SECRET, "content": [{"type": SECRET}]}]},
]


@pytest.fixture
def locked(config, tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"tenants: {{acme: [{hash_of(KEY)}]}}\n")
    return replace(config, router=replace(config.router, api_keys=str(keys)))


async def test_nothing_that_a_client_sent_or_got_is_recorded(locked):
    answers = []
    with everything_logged() as log, recorded() as page:
        async with cluster(locked) as local, httpx.AsyncClient(timeout=30) as http:
            base = f"http://{local.router.http_address}/v1"
            for body in BODIES:
                path = "chat/completions" if "messages" in body else "completions"
                reply = await http.post(
                    f"{base}/{path}", json=body, headers={"authorization": f"Bearer {KEY}"}
                )
                if reply.status_code == 200:
                    choice = reply.json()["choices"][0]
                    answers.append(choice.get("text") or choice["message"]["content"])
            for body in MESSAGES:
                sent = {"model": "", **body}
                for url, more in (("", {"max_tokens": 4}), ("/count_tokens", {})):
                    reply = await http.post(
                        f"{base}/messages{url}", json=sent | more, headers={"x-api-key": KEY}
                    )
                    if "content" in reply.json():
                        answers += [block.get("text", "") for block in reply.json()["content"]]
            unknown = await http.post(
                f"{base}/messages", json=MESSAGES[0], headers={"x-api-key": f"{KEY}x"}
            )
            assert unknown.status_code == 401 and KEY not in unknown.text
            wrong = {"authorization": f"Bearer {KEY}x"}
            assert (await http.get(f"{base}/models", headers=wrong)).status_code in (200, 401)
            await http.post(f"{base}/completions", json=BODIES[0], headers=wrong)
            async with Client(local.router.grpc_address, api_key=KEY) as client:
                done = await client.complete(SECRET, max_tokens=40, ignore_eos=True)
                answers.append(done.choices[0].text)
                for options in ({"stop": (SECRET,) * 100}, {"endpoint": "nowhere"}):
                    with suppress(TandemError):
                        await client.complete(SECRET, **options)
        metrics = generate_latest(page._backend.registry).decode()
    logged = log.getvalue()
    assert "request ended" in logged and "tandem_requests_total" in metrics
    assert len(answers) >= 6
    for text in (logged, metrics, str(locked.to_dict())):
        assert SECRET not in text
        assert KEY not in text
        assert str(TOKENS)[1:-1] not in text
        assert not [answer for answer in answers if len(answer) >= 8 and answer[:24] in text]


async def test_a_fault_in_a_replica_tells_nothing_of_the_request(config, monkeypatch):
    async with cluster(config) as local:
        with everything_logged() as log:
            for verb in ("step", "pursue"):
                break_prompts(monkeypatch, verb)
            with pytest.raises(TandemError) as failed:
                await local.client.complete(SECRET, max_tokens=4, timeout_s=20)
        assert "the matrix is on fire" in log.getvalue()
        assert SECRET not in log.getvalue()
        assert SECRET not in failed.value.message


def break_prompts(monkeypatch, verb):
    async def fails(self, *_, **__):
        raise RuntimeError("the matrix is on fire")

    monkeypatch.setattr(EngineWorker, verb, fails)
