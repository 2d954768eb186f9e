"""Every replica and router restarts under load: no request fails, and no stream breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from bench.core.markdown_tables import table
from cluster.client.admin_client import fetch_status
from engine.errors import TandemError
from tests.e2e.serving import serve
from tests.e2e.steady_load import KINDS, SteadyLoad
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

# However slow the machine is: nothing is refused, nobody is taken for dead, every stream may end.
CONFIG = """
kv: {blocks: 1200, silence_s: 20}
directory: {lease_s: 15}
decode: {itl_budget_ms: 60000}
router: {replicas: 2, kv_overcommit: 100.0}
ray: {drain_s: 120}
endpoints: {chat: {max_output_tokens: 2048, ttft_budget_ms: 600000, itl_budget_ms: 60000}}
"""
ROLES = ("prefill", "decode", "router")
REPLACED_S = 120


@pytest.fixture
def serving(model, model_folder, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ["--model", str(model_folder), "--dtype", "float32"]
    arguments += ["--config", str(tmp_path / "config.yaml")]
    arguments += ["--prefill-replicas", "2", "--decode-replicas", "2"]
    with serve(*arguments, folder=tmp_path) as running:
        yield running


async def members(serving):
    """The role of each replica and router that stays, by id; none while no router answers."""
    try:
        status = await fetch_status(serving.grpc)
    except TandemError:
        return {}
    return {one.id: one.role for one in status.replicas if not one.leaving}


async def processes(serving):
    """Each process that serves, with its role."""
    status = await fetch_status(serving.grpc)
    pools = [one for one in status.replicas if one.role != "router"]
    found = [(one.role, serving.pid_of(one.address)) for one in pools]
    return found + [("router", pid) for pid in serving.pids_of(serving.grpc)]


async def replaced(serving, before):
    """Wait until as many others as `before` serve in each role, and none of `before` does."""

    async def whole():
        now = await members(serving)
        fresh = [role for one, role in now.items() if one not in before]
        return sorted(fresh) == sorted(before.values()) and not set(before) & set(now)

    await eventually(whole, REPLACED_S, 0.5)


async def one_by_one(serving, load, rows):
    """SIGTERM to each process in turn; the next one once another process serves in its place."""
    for role, pid in sorted(await processes(serving), key=lambda one: ROLES.index(one[0])):
        before, began_s = await eventually(lambda: members(serving)), time.monotonic()
        os.kill(pid, signal.SIGTERM)

        async def follows(pid=pid, before=before):
            now = await members(serving)
            whole = len(now) == len(before) == len(set(now) & set(before)) + 1
            return whole and not Path(f"/proc/{pid}").exists()

        await eventually(follows, REPLACED_S, 0.5)
        rows.append((f"SIGTERM to a {role}", began_s, time.monotonic()))


async def all_at_once(serving, load, rows):
    """The command of an operator."""
    before, began_s = await eventually(lambda: members(serving)), time.monotonic()
    done = await asyncio.to_thread(serving.tandem, "restart", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    await replaced(serving, before)
    rows.append(("tandem restart", began_s, time.monotonic()))


async def restarted(serving, model, monkeypatch):
    load, rows = SteadyLoad(serving.grpc, serving.http, model), []
    async with load.running(monkeypatch):
        await eventually(lambda: len(load.count()) == len(KINDS))
        await one_by_one(serving, load, rows)
        await all_at_once(serving, load, rows)
    return load, rows


async def test_no_request_fails_while_all_restarts(serving, model, monkeypatch, capsys):
    load, rows = await restarted(serving, model, monkeypatch)
    with capsys.disabled():
        print(f"\n{sum(load.count().values())} requests, sent again: {dict(load.retries)}")
        columns = ("restart", "seconds", "requests", *(f"pause, {kind}" for kind in KINDS))
        print(table(columns, [_row(load, *row) for row in rows]))
    assert load.failures() == []


def _row(load, what, began_s, ended_s):
    """The requests that ended during a restart or, if they ran then, soon after."""
    pauses = load.pauses(began_s, ended_s)
    ended = sum(began_s <= one.ended_s <= ended_s for one in load.ended)
    return what, f"{ended_s - began_s:.1f}", str(ended), *(f"{pauses[k]:.2f}" for k in KINDS)
