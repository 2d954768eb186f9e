"""The client of streamed completions, against bytes and against a small server."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.core.engine_plan import Figures, Measurement
from bench.load.client import Target, send_request
from bench.load.closed_loop import ServerTarget, figures
from bench.load.http_recording import BadAnswer, RecordedAnswer

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(text, **more):
    return f"data: {json.dumps({'choices': [{'text': text}], **more})}\n\n".encode()


def _chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _answer(*parts):
    return RecordedAnswer(0.0, [(float(moment), data) for moment, data in enumerate(parts, 1)])


def test_tokens_have_the_moment_at_which_their_event_was_complete():
    whole = _chunk(_event("w3 w4"))
    answer = _answer(_HEAD + whole[:20], whole[20:], _chunk(_event(" w5")) + b"0\r\n\r\n")
    assert answer.stream() == [(2.0, 2), (3.0, 1)]
    assert answer.first_token_s() == 2.0


def test_an_event_may_span_chunks_and_a_chunk_have_several_events():
    first, second = _event("w3"), _event(" w4")
    answer = _answer(
        _HEAD + _chunk(first + second[:9]), _chunk(second[9:]), _chunk(b"data: [DONE]\n\n")
    )
    answer.reads.append((9.0, b"0\r\n\r\n"))
    assert answer.stream() == [(1.0, 1), (2.0, 1)]


def test_events_without_text_are_no_tokens_and_the_usage_is_read():
    data = _event("w3") + _event("") + b'data: {"choices": [], "usage": {"prompt_tokens": 7}}\n\n'
    answer = _answer(_HEAD + _chunk(data) + b"0\r\n\r\n")
    assert answer.stream() == [(1.0, 1)]
    assert answer.prompt_tokens() == 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\x18\x04\0\0\0\0\0",  # HTTP/2: a gRPC port
        b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy",
        _HEAD + _chunk(_event("w3")),
        _HEAD + _chunk(b'data: {"error": "out of memory"}\n\n') + b"0\r\n\r\n",
    ],
)
def test_an_incomplete_answer_is_refused(data):
    with pytest.raises(BadAnswer):
        _answer(data).stream()


def test_a_refusal_is_told_by_its_status_and_its_body():
    refusal = b"HTTP/1.1 401 Unauthorized\r\nx-request-id: 1\r\n\r\na key is needed"
    with pytest.raises(BadAnswer) as refused:
        _answer(refusal).body()
    assert str(refused.value) == "HTTP/1.1 401 Unauthorized: a key is needed"


async def _serve(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(size))
    writer.write(_HEAD)
    for token in range(body["max_tokens"]):
        writer.write(_chunk(_event(f" w{token + 3}")))
        await writer.drain()
        await asyncio.sleep(0)  # the client reads each by itself
    usage = {"prompt_tokens": len(body["prompt"].split())}
    writer.write(_chunk(_event("", usage=usage)) + b"0\r\n\r\n")
    await _close(writer)


async def _close(writer):
    writer.close()
    await writer.wait_closed()


async def test_a_plan_against_a_server_gives_every_column():
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        server_target = ServerTarget(Target.local(port), "model", 300)
        plan = Measurement(prompt_tokens=5, new_tokens={1: 30, 3: 30}, long_prompt=9, repeats=2)
        found = await figures(server_target, plan, "test")
    assert {name: len(values) for name, values in found.columns.items()} == {
        "decode 1": 2,
        "decode 3": 2,
        "prefill": 2,
    }
    assert Figures.read("noise\n" + found.write()).columns == found.columns


async def test_a_silent_server_meets_the_deadline():
    released = asyncio.Event()

    async def hold(reader, writer):
        await reader.read()
        await _close(writer)
        released.set()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        with pytest.raises(TimeoutError):
            target = Target.local(server.sockets[0].getsockname()[1])
            await send_request(target, target.post({}), 0.05)
        await released.wait()


def test_a_plan_survives_the_way_to_another_process():
    plan = Measurement(new_tokens={8: 64}, repeats=2)
    assert Measurement.read(plan.write()) == plan
