"""The claims, what was measured of them, and asking one server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from bench.compare.claim_modes import MODES, crowd_load, mixed_load, tokens_per_s
from bench.compare.claim_table import (
    CHUNKS,
    CLAIMS,
    COALESCED,
    KEYS,
    MODE_KEYS,
    SERVING,
    SPECULATIVE,
    STATIC,
    UNMEASURED,
    as_series,
    claims_table,
    cost_per_million,
    parts_of,
)
from bench.compare.claims import Questions
from bench.load.client import Target
from bench.load.closed_loop import ServerTarget
from bench.load.http_recording import BadAnswer


def test_only_measured_figures_are_printed():
    lines = claims_table({"batch": [8.0, 9.0, 7.0]}).splitlines()[2:]
    assert len(lines) == len(CLAIMS)
    assert sum(UNMEASURED in line for line in lines) == len(CLAIMS) - 1
    assert "8.00 [7.00 to 9.00] x" in lines[[claim.key for claim in CLAIMS].index("batch")]
    assert "250 ms" in claims_table({"whole-first": [250.0]})


def test_every_claim_says_how_it_is_measured():
    assert all(claim.how for claim in CLAIMS)
    assert len(set(KEYS)) == len(CLAIMS)
    assert parts_of(["batch", "whole"]) == [SERVING]
    assert parts_of(KEYS) == [COALESCED, SERVING, CHUNKS, STATIC, SPECULATIVE, *MODE_KEYS]
    assert tuple(MODES) == MODE_KEYS


def test_a_rate_has_its_cost():
    assert cost_per_million(1000.0, 3.6) == pytest.approx(1.0)
    line = claims_table({"serial": [100.0]}, 0.36)
    assert "100 tokens/s, $1.000 per million" in line
    machine = {"commit": "c", "date": "2026-01-02"}
    assert as_series({}, machine, 0.36).conditions == {"dollars_per_hour": 0.36}


def test_the_values_are_kept():
    series = as_series({"batch": [7.0, 8.0, 9.0]}, {"commit": "c", "date": "2026-01-02"})
    assert list(series.figures) == ["batch"]
    assert (series.figures["batch"].value, series.figures["batch"].n) == (8.0, 3)


async def _serve(reader, writer):
    """Ten tokens a message, whatever is asked; a whole answer where no stream is."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(size))
    assert body.get("stream") or "stream_options" not in body
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    text = json.dumps({"choices": [{"text": " w3" * 10}]}).encode()
    for _ in range(max(2, body["max_tokens"] // 10)):
        await asyncio.sleep(0)  # the client reads each by itself
        writer.write(b"data: " + text + b"\n\n" if body.get("stream") else text)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_a_server_is_asked_for_every_claim_of_its_part(monkeypatch):
    async def rate(self, batch, new):
        return {1: 100.0, 8: 500.0, 32: 900.0}[batch]

    monkeypatch.setattr(Questions, "rate", rate)
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        target = Target.local(server.sockets[0].getsockname()[1])
        extra = {"stream_options": {"include_usage": True}}
        questions = Questions(ServerTarget(target, "m", 100, extra), "test")
        await questions.serving()
    wanted = {claim.key for claim in CLAIMS if claim.part == SERVING}
    assert set(questions.by_claim) == wanted
    assert all(len(values) == 1 for values in questions.by_claim.values())
    assert questions.by_claim["batch"] == [9.0]
    assert questions.by_claim["token-time"] == [1.6]


def test_wrong_keys_are_no_part():
    assert parts_of(["cheaper"]) == []


def test_loads_for_batching_modes_are_drawn_from_their_seed():
    load = mixed_load(3)
    assert load == mixed_load(3) and load != mixed_load(4)
    lengths = {arrival.new_tokens for arrival in load.arrivals}
    assert 16 <= min(lengths) < 40 < 100 < max(lengths) <= 128
    assert all(arrival.new_tokens == 64 for arrival in crowd_load(1).arrivals)


async def test_a_mode_counts_only_where_every_request_was_answered(monkeypatch):
    short = replace(crowd_load(1), arrivals=crowd_load(1).arrivals[:3])
    monkeypatch.setattr("bench.compare.claim_modes.crowd_load", lambda seed: short)
    monkeypatch.setattr("bench.compare.claim_modes.warm_load", lambda seed: short)
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        target = Target.local(server.sockets[0].getsockname()[1])
        server_target = ServerTarget(target, "m", 100, {"stream_options": {"include_usage": True}})
        with pytest.raises(BadAnswer, match="3 of 3"):
            await tokens_per_s(server_target, "test", 1)
        shorter = tuple(replace(one, new_tokens=20) for one in short.arrivals)
        short = replace(short, arrivals=shorter)
        assert await tokens_per_s(server_target, "test", 1) == pytest.approx(60 / 4, rel=0.5)
