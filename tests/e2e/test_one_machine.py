"""`tandem serve` keeps to itself, outlives its GCS, and drains as long as it is told."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from cluster.api import Tokens
from cluster.deploy.orphan_guard import NAME
from engine.errors import Unavailable
from tandem_client import Client
from tests.e2e.held import held
from tests.e2e.serving import serve
from tests.eventually import eventually, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
PROMPT = [1] * 20
OPTIONS = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True, "timeout_s": 240}
# Longer than the drain of ten seconds that once cut streams.
HELD_S = 14.0
# A busy machine may give little to a replica that is held.
BEGINS_S, REPLACED_S, ENDS_S = 120, 120, 60
CONFIG = """
kv: {silence_s: 20}
directory: {lease_s: 15}
endpoints: {chat: {max_output_tokens: 2000, ttft_budget_ms: 600000, itl_budget_ms: 60000}}
ray: {drain_s: 120}
"""


@pytest.fixture
def serving(model, model_folder, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", str(tmp_path / "config.yaml"), folder=tmp_path) as running:
        yield running


def name(pid):
    """The name of a process; "" where it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return "" if state == "Z" else Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def gcs(serving):
    """The process id of Ray's GCS; None while there is none."""
    return next((pid for pid in serving.below() if name(pid) == "gcs_server"), None)


async def begun(client):
    """A stream with its first tokens, and the task that reads the rest."""
    events, got = client.generate(PROMPT, **OPTIONS), []

    async def read():
        async for event in events:
            if isinstance(event, Tokens):
                assert event.index == len(got)
                got.extend(event.ids)
        return got

    task = asyncio.create_task(read())
    await eventually(lambda: len(got) > 3 or task.done(), BEGINS_S)
    return task


async def test_nothing_listens_elsewhere_and_the_gcs_may_die(serving):
    """One cluster for all of it: what listens, its folder, its GCS, and a kill at the end."""
    assert serving.hosts() == {"127.0.0.1"}
    session = _session(serving)
    private = session.parent.parent
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.glob("gcs-*"))
    _warned_of_a_stranger(serving)

    async with Client(serving.grpc) as client:
        expected = await (await begun(client))
        for _ in range(2):
            with held(serving):
                stream = await begun(client)
                await _gcs_killed(serving)
            assert await stream == expected
        # The new GCS knows the cluster: a replica that dies is replaced.
        decode = next(one for one in serving.replicas() if one["role"] == "decode")
        os.kill(serving.pid_of(decode["address"]), signal.SIGKILL)
        other = partial(asyncio.to_thread, _replaced, serving, decode["id"])
        await eventually(other, REPLACED_S, 0.5)
        assert await (await begun(client)) == expected

    below = serving.below()
    wait_until(lambda: NAME in map(name, serving.below()))
    serving.process.kill()
    serving.process.wait(ENDS_S)
    wait_until(lambda: not any(map(name, below)), ENDS_S)


async def test_a_stream_outlives_sigterm_as_long_as_the_drain(serving):
    session = _session(serving)
    async with Client(serving.grpc) as client, httpx.AsyncClient(timeout=60) as http:
        expected = await (await begun(client))
        with held(serving):
            stream = await begun(client)
            serving.process.send_signal(signal.SIGTERM)
            began_s = time.monotonic()
            health = f"{serving.http.removesuffix('/v1')}/healthz"
            await eventually(lambda: _is_ending(http, health), poll_s=0.1)
            with pytest.raises(Unavailable) as refused:
                await client.complete(PROMPT, max_tokens=2)
            assert refused.value.retry_after_s > 1
            body = {"model": "tiny", "prompt": PROMPT}
            answer = await http.post(f"{serving.http}/completions", json=body)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 1
            await eventually(lambda: time.monotonic() - began_s > HELD_S, 2 * HELD_S, 0.1)
            assert not stream.done()
        assert await stream == expected
    assert serving.process.wait(ENDS_S) == 0
    assert not session.exists()


async def _gcs_killed(serving):
    """Kill the GCS, and wait for the next one."""
    before = gcs(serving)
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: gcs(serving) not in (None, before), REPLACED_S, 0.1)


def _replaced(serving, replica_id):
    decode = [one["id"] for one in serving.replicas() if one["role"] == "decode"]
    return decode and decode != [replica_id]


async def _is_ending(http, health):
    answer = await http.get(health)
    return answer.status_code == 503 and "router" in answer.json()["missing"]


def _warned_of_a_stranger(serving):
    """A replica refuses a connection without the secret, and the operator's terminal says so."""
    host, _, port = serving.replicas()[0]["address"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    warning = "warning protos.wire.refusals connections were refused"
    wait_until(lambda: warning in serving.log.read_text())


def _session(serving):
    """The session folder of this cluster's Ray."""
    command = Path(f"/proc/{gcs(serving)}/cmdline").read_text()
    found = re.search(r"--session-dir=([^\0]+)", command)
    assert found
    return Path(found.group(1))
