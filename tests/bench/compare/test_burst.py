"""Systems in turn on the same loads, kept, and reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest

from bench.compare import burst
from bench.compare.burst import Bout, compare, load_record, write_results
from bench.core.results import read_all
from bench.load.arrivals import CALM, Arrival, Load
from bench.load.client import Target
from bench.load.closed_loop import ServerTarget
from bench.systems.contenders import BURST_LOAD, POOLS, RETRY_LOAD, SINGLE, BurstShape, Contender
from bench.systems.server_process import NotReady
from bench.systems.services import CliPaths

_SHORT = BurstShape(rate=20, factor=2, before_s=0.2, burst_s=0.1, drain_s=0.1)


class Started:
    """Stands for a service that is up already."""

    def __init__(self, server_target, log):
        self.server_target, self.log = server_target, log

    @contextlib.contextmanager
    def running(self, logs):
        self.log.append("start")
        try:
            yield self.server_target
        finally:
            self.log.append("end")


class Failing:
    def running(self, logs):
        raise NotReady("it ended with 1")


async def _serve(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    new = json.loads(await reader.readexactly(size))["max_tokens"]
    event = json.dumps({"choices": [{"text": " w3" * new}]}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: " + event + b"\n\n")
    writer.close()
    await writer.wait_closed()


@pytest.fixture
def bout(tmp_path, monkeypatch):
    warm = Load("warm", 0, (Arrival(0.0, CALM, 4, 2),), ((CALM, 0.0, 0.1),))
    monkeypatch.setattr(burst, "warm_load", lambda seed: warm)
    paths = CliPaths(tmp_path, tmp_path, tmp_path, tmp_path)
    return Bout([BURST_LOAD, RETRY_LOAD], 2, _SHORT, paths, tmp_path)


async def test_every_system_has_its_turn_and_a_failure_is_reported(bout, tmp_path, monkeypatch):
    log = []
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        server_target = ServerTarget(Target.local(server.sockets[0].getsockname()[1]), "m", 1000)
        contenders = {
            POOLS: Contender("pools", lambda paths, more: Started(server_target, log)),
            SINGLE: Contender("single", lambda paths, more: Failing()),
        }
        monkeypatch.setattr(burst, "CONTENDERS", contenders)
        record = tmp_path / "record.jsonl"
        await asyncio.to_thread(compare, bout, [POOLS, SINGLE], 2, record)
    assert log == ["start", "end"] * 2
    found = load_record(record)
    assert [(one.system, one.round) for one in found] == (
        [(POOLS, 1)] * 4 + [(SINGLE, 1)] + [(POOLS, 2)] * 4 + [(SINGLE, 2)]
    )
    assert [one.error for one in found if one.system == SINGLE] == ["NotReady: it ended with 1"] * 2
    runs = [one for one in found if one.system == POOLS]
    # On a busy machine a request may be late.
    assert all(one.count("requests") >= one.count("within_goals") > 0 for one in runs)
    # The same seed is the same load in every round.
    assert {one.count("requests") for one in runs if one.seed == 1} == {runs[0].count("requests")}
    assert len(list(tmp_path.glob("burst-pools-*.html"))) == 4
    write_results(found, tmp_path / "results")
    [results] = read_all(tmp_path / "results")
    burst_series, retried = results.series
    assert (burst_series.name, retried.name) == (BURST_LOAD, RETRY_LOAD)
    about = str(retried.conditions["about"])
    assert "Poisson at 20/s for 0.2 s, 2 times that for 0.1 s" in about
    assert "the refused come back once" in about
    assert burst_series.figures["pools: within goals"].n == 4


def test_rounds_are_counted_for_each_load(bout, tmp_path, monkeypatch):
    contenders = {POOLS: Contender("pools", lambda paths, more: Failing())}
    monkeypatch.setattr(burst, "CONTENDERS", contenders)
    record = tmp_path / "record.jsonl"
    for load in (RETRY_LOAD, BURST_LOAD, BURST_LOAD):
        compare(replace(bout, names=[load]), [POOLS], 1, record)
    rounds = [(one.load, one.round) for one in load_record(record)]
    assert rounds == [(RETRY_LOAD, 1), (BURST_LOAD, 1), (BURST_LOAD, 2)]
