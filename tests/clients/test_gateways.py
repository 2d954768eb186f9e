"""Gateways in front of this server, and a page that talks to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import httpx
import pytest

from bench.systems.server_process import free_port
from tests.eventually import wait_until

KEY = "sk-of-this-test"
HELLO = [{"role": "user", "content": "What is prefill?"}]


@pytest.fixture
def litellm(serving, clients, tmp_path):
    """A LiteLLM proxy in front of the cluster; its address."""
    port = free_port()
    model = {"model": "openai/demo", "api_base": serving.http, "api_key": "none"}
    config = {
        "model_list": [{"model_name": "front", "litellm_params": model}],
        "general_settings": {"master_key": KEY},
    }
    (tmp_path / "litellm.json").write_text(json.dumps(config))
    arguments = ["--config", "litellm.json", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "litellm.log").open("w") as log:
        process = subprocess.Popen(
            [clients / "gateways/bin/litellm", *arguments, "--telemetry", "False"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env=os.environ | {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(f"{address}/health/liveliness"), 120)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _answers(url):
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_litellm_proxy(litellm):
    body = {"model": "front", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    url, sent = (
        f"{litellm}/chat/completions",
        {"headers": {"authorization": f"Bearer {KEY}"}, "timeout": 60},
    )
    whole = httpx.post(url, json=body, **sent).json()
    assert whole["usage"]["completion_tokens"] == 12
    text = ""
    with httpx.stream("POST", url, json=body | {"stream": True}, **sent) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
    assert text == whole["choices"][0]["message"]["content"]
    long = body | {"messages": [{"role": "user", "content": "hello " * 6000}]}
    refused = httpx.post(url, json=long, **sent)
    assert refused.status_code == 400
    assert "ContextWindowExceededError" in refused.text


def test_the_calls_of_open_webui(serving):
    """Models, a streamed chat with the fields that it sends, and the making of a title."""
    with httpx.Client(base_url=serving.http, timeout=60) as http:
        models = http.get("/models", headers={"authorization": "Bearer none"}).json()
        assert [one["id"] for one in models["data"]] == ["demo"]
        usage = {"stream_options": {"include_usage": True}}
        chat = {"model": "demo", "stream": True, "messages": HELLO, "max_tokens": 8, **usage}
        with http.stream("POST", "/chat/completions", json=chat) as answer:
            events = [line for line in answer.iter_lines() if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["usage"]["completion_tokens"] == 8
        title = {"model": "demo", "stream": False, "max_completion_tokens": 1000}
        asked = "### Task: generate a concise title with an emoji.\n" + HELLO[0]["content"]
        made = http.post(
            "/chat/completions", json=title | {"messages": [{"role": "user", "content": asked}]}
        )
        assert made.status_code == 200
        assert made.json()["choices"][0]["message"]["content"]
