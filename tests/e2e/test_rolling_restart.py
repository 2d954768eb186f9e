"""Every replica and router restarts under load: no request fails, and no stream breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.core.markdown_tables import table
from cluster.client.admin_client import fetch_status
from engine.errors import TandemError
from tests.e2e.serving import serve
from tests.e2e.steady_load import KINDS, SteadyLoad
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

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
PLACES = dict.fromkeys(ROLES, 2)
REPLACED_S = 180


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
    """A process of each role that serves; none while a router does not know all of them."""
    try:
        status = await fetch_status(serving.grpc)
    except TandemError:  # a busy router may be late
        return {}
    pools = [one for one in status.replicas if one.role != "router"]
    found = [(one.role, serving.pid_of(one.address)) for one in pools]
    found += [("router", pid) for pid in serving.pids_of(serving.grpc)]
    return dict(found) if Counter(role for role, _ in found) == PLACES else {}


async def others_serve(serving, before, count):
    """Wait until so many of `before` have given their places to others; returns who serves.

    What one router shows counts: the other one may learn of the same change a moment later.
    """
    now = {}

    async def whole():
        nonlocal now
        now = await members(serving)
        left = len(before) - len(now.keys() & before.keys())
        return left == count and Counter(now.values()) == PLACES

    try:
        await eventually(whole, REPLACED_S, 0.5)
    except TimeoutError:
        raise AssertionError(f"after {REPLACED_S} s {now} serve; before {before}") from None
    return now


async def one_by_one(serving, load, rows):
    """SIGTERM to a process of each role; the next one once another process serves in its place."""
    serve = await others_serve(serving, {}, 0)
    found = await eventually(lambda: processes(serving))
    for role in ROLES:
        pid, began_s = found[role], time.monotonic()
        os.kill(pid, signal.SIGTERM)
        serve = await others_serve(serving, serve, 1)
        await eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), REPLACED_S, 0.5)
        rows.append((f"SIGTERM to a {role}", began_s, time.monotonic()))
    return serve


async def all_at_once(serving, load, rows, before):
    """The command of an operator."""
    began_s = time.monotonic()
    done = await asyncio.to_thread(serving.tandem, "restart", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    await others_serve(serving, before, len(before))
    rows.append(("tandem restart", began_s, time.monotonic()))


async def restarted(serving, model, monkeypatch):
    load, rows = SteadyLoad(serving.grpc, serving.http, model), []
    async with load.running(monkeypatch):
        await eventually(lambda: len(load.count()) == len(KINDS), REPLACED_S)
        serve = await one_by_one(serving, load, rows)
        await all_at_once(serving, load, rows, serve)
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
