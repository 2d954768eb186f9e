"""The pieces of an answer by the mode of its endpoint, at both front ends of a real cluster."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from cluster.api import Progress, Started, Summary, Tokens
from cluster.config.endpoints import FlushConfig
from cluster.router import decode_progress
from protos import prompt_reports
from tests.integration.local import cluster, slow_steps

MODES = ("tokens", "chunks", "progress", "whole")
PROMPT = list(range(1, 40))
COUNT = 40
# A step takes longer, so that a busy machine keeps up with the pieces.
STEP_S = 0.005
OPTIONS = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def often(monkeypatch):
    """Whatever can be told of a request is told, however fast it goes."""
    monkeypatch.setattr(prompt_reports, "EVERY_S", 0.001)
    monkeypatch.setattr(decode_progress, "EVERY_S", 0.0)


@pytest.fixture
def modes(config):
    chat = config.endpoints["chat"]
    endpoints = {mode: replace(chat, stream=mode) for mode in MODES}
    # Only what is due at once comes before the end.
    endpoints["delayed"] = replace(chat, flush=FlushConfig(60_000, 1000))
    return replace(config, endpoints=endpoints)


async def events_of(local, endpoint, **more):
    options = OPTIONS | more
    return [event async for event in local.client.generate(PROMPT, endpoint=endpoint, **options)]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Tokens))


async def test_every_mode_gives_the_same_text_in_its_own_pieces(modes, often):
    async with cluster(modes) as local:
        slow_steps(local.decode, STEP_S)
        had = {mode: await events_of(local, mode) for mode in (*MODES, "delayed")}
        several = {mode: await events_of(local, mode, n=2) for mode in MODES}
        await local.idle()
    assert len({text_of(events) for events in had.values()}) == 1
    for mode, events in had.items():
        assert isinstance(events[-1], Summary)
        ids = [len(event.ids) for event in events if isinstance(event, Tokens)]
        assert sum(ids) == COUNT
        told = [event for event in events if isinstance(event, Progress)]
        if mode in ("progress", "whole"):
            assert ids == [COUNT]
        if mode == "progress":
            decoding = [event.tokens for event in told if event.stage == "decode"]
            assert decoding == sorted(decoding) and 1 <= decoding[0] <= decoding[-1] < COUNT
            assert {event.total_tokens for event in told if event.stage == "decode"} == {COUNT}
        else:
            assert not told
        if mode == "whole":
            assert [type(event) for event in events] == [Started, Tokens, Summary]
        if mode == "delayed":
            # The first of prefill by itself, what decode gave first, and the rest together.
            assert ids[0] == 1 and len(ids) <= 3
    for mode in ("progress", "whole"):
        pieces = [event for event in several[mode] if isinstance(event, Tokens)]
        assert sorted(event.choice for event in pieces) == [0, 1]
        assert all(len(event.ids) == COUNT for event in pieces)


async def test_each_token_comes_by_itself_to_a_reader_that_keeps_up(modes):
    async with cluster(modes) as local:
        slow_steps(local.decode, STEP_S)
        events = await events_of(local, "tokens")
        await local.idle()
    pieces = [event for event in events if isinstance(event, Tokens)]
    # Two steps can share a message on a machine that is busy; most do not.
    assert len(pieces) > COUNT // 2


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_a_long_prompt_reports_progress_while_it_is_computed(modes, often, prefill_replicas):
    config = replace(
        modes, prefill=replace(modes.prefill, chunk_tokens=16, replicas=prefill_replicas)
    )
    prompt = [1 + number % 90 for number in range(600)]
    async with cluster(config) as local:
        options = OPTIONS | {"max_tokens": 4, "endpoint": "chunks"}
        events = [event async for event in local.client.generate(prompt, progress=True, **options)]
        quiet = [event async for event in local.client.generate([*prompt[:-1], 7], **options)]
        await local.idle()
    told = [event for event in events if isinstance(event, Progress)]
    assert told and all(event.total_tokens == 600 for event in told)
    computed = [event.tokens for event in told if event.stage == "prefill"]
    assert computed == sorted(computed) and computed[-1] <= 600
    assert any(0 < tokens < 600 for tokens in computed)
    assert events.index(told[-1]) < next(
        place for place, event in enumerate(events) if isinstance(event, Tokens)
    )
    assert not any(isinstance(event, Progress) for event in quiet)


async def test_over_http_text_that_is_kept_comes_in_one_chunk(modes, often):
    async with (
        cluster(modes) as local,
        httpx.AsyncClient(base_url=f"http://{local.router.http_address}") as client,
    ):
        slow_steps(local.decode, STEP_S)
        texts, had = {}, {}
        for mode in MODES:
            body = OPTIONS | {"prompt": PROMPT, "stream": True, "endpoint": mode}
            reply = await client.post("/v1/completions", json=body, timeout=30)
            pieces = reply.text.removesuffix("\n\n").split("\n\n")
            had[mode] = pieces
            chunks = [json.loads(piece[6:]) for piece in pieces if piece.startswith("data: {")]
            *pieces_of_text, last = [chunk["choices"][0] for chunk in chunks]
            texts[mode] = [one["text"] for one in pieces_of_text]
            assert (last["text"], last["finish_reason"]) == ("", "length")
            assert pieces[-1] == "data: [DONE]"
    assert len({"".join(pieces) for pieces in texts.values()}) == 1
    assert len(texts["whole"]) == len(texts["progress"]) == 1
    assert len(had["whole"]) == 3
    assert any(piece.startswith(': progress {"choice":0') for piece in had["progress"])
    assert len(texts["tokens"]) > 1


async def test_without_progress_there_are_no_reports_and_no_timer(modes, monkeypatch):
    begun = []
    begin = prompt_reports.PromptReports.begin
    monkeypatch.setattr(
        prompt_reports.PromptReports,
        "begin",
        lambda *given: begun.append(given) or begin(*given),
    )
    async with cluster(modes) as local:
        for mode in ("tokens", "chunks", "whole"):
            await events_of(local, mode)
        assert not begun
        await events_of(local, "progress")
        await asyncio.sleep(0)
    assert begun
