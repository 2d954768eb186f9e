"""The typed client against a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from cluster.api import ChatMessage, ChatPrompt, Started, Summary, TextPrompt, TokenPrompt, Tokens
from cluster.api.error_mapping import TABLE
from cluster.gateway.grpc_server import start
from engine.types.sampling_params import SamplingParams
from tandem_client import Client, errors
from tests.cluster.scripted_generator import CARD, ScriptedGenerator, raised
from tests.eventually import eventually


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()


@pytest.fixture
async def client(generator) -> AsyncIterator[Client]:
    server = await start(generator, max_message_bytes=64 * 1024)
    async with Client(f"127.0.0.1:{server.port}", timeout_s=30.0) as opened:
        yield opened
    await server.stop(0)


async def test_events_are_the_apis(client, generator):
    got = [event async for event in client.generate("a b", max_tokens=2, seed=5, logprobs=1)]
    assert got[0] == Started("", "demo", 2, 5)
    assert [event.text for event in got if isinstance(event, Tokens)] == ["one", " two"]
    assert got[1].tokens[0].top == ((0, -0.5),)
    assert isinstance(got[-1], Summary)
    assert generator.requests[0].sampling == SamplingParams(max_tokens=2, seed=5, logprobs=1)


async def test_heartbeats_are_not_shown(client, generator):
    generator.heartbeats = 2
    kinds = [type(event) async for event in client.generate("a", max_tokens=1)]
    assert kinds == [Started, Tokens, Summary]


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ("text", TextPrompt("text")),
        ([1, 2], TokenPrompt((1, 2))),
        ((1, 2), TokenPrompt((1, 2))),
        ([{"role": "user", "content": "hi"}], ChatPrompt((ChatMessage("user", "hi"),))),
        ([ChatMessage("system", "be")], ChatPrompt((ChatMessage("system", "be"),))),
        (TextPrompt("text"), TextPrompt("text")),
    ],
)
async def test_prompts(client, generator, given, prompt):
    await client.complete(given)
    assert generator.requests[0].prompt == prompt


async def test_complete_gathers_all_choices(client):
    done = await client.complete("a b", n=2, max_tokens=3, request_id="r1")
    assert done.text == "one two three"
    assert [choice.text for choice in done.choices] == ["one two three"] * 2
    assert [token.token for token in done.choices[1].tokens] == [0, 1, 2]
    assert done.choices[0].finish_reason == "length"
    assert done.started.request_id == "r1"
    assert done.summary.choices[1].decode_replica == "d0"


async def test_the_model(client):
    card = await client.model()
    assert (card.name, card.endpoints) == (CARD.name, CARD.endpoints)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("kind", TABLE)
async def test_each_error_comes_back_as_its_class(client, generator, kind, after):
    generator.error, generator.after = kind("what happened"), after
    error = await raised(client.complete("a"))
    assert type(error) is kind
    assert error.message == "what happened"
    assert error.retry_after_s == (1.0 if kind.retryable else None)


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "text"),
        ([], {}, "token_ids"),
        ([-1], {}, "prompt"),
        ([2**40], {}, "prompt"),
        ([10**5000], {}, "prompt"),
        ([1.0], {}, "prompt"),
        ([9999], {}, "prompt"),
        ("\ud800", {}, "prompt"),
        ([{"role": "robot", "content": "x"}], {}, "chat.messages[0].role"),
        ([{"role": "user"}], {}, "messages[0]"),
        ([{"role": "user", "content": 5}], {}, "prompt"),
        ("a", {"max_tokens": 2**40}, "max_tokens"),
        ("a", {"temperature": float("nan")}, "temperature"),
        ("a", {"top_p": 1.5}, "top_p"),
        ("a", {"n": 0.5}, "n"),
        ("a", {"n": 500}, "n"),
        ("a", {"stop": ""}, "stop"),
    ],
)
async def test_bad_input(client, prompt, options, field):
    error = await raised(client.complete(prompt, **options))
    assert type(error) is errors.InvalidRequest
    assert error.field == field


async def test_an_unknown_option_is_a_mistake_of_the_program(client):
    with pytest.raises(TypeError, match="max_token"):
        await client.complete("a", max_token=3)


async def test_unknown_names(client):
    for field in ("model", "endpoint"):
        error = await raised(client.complete("a", **{field: "other"}))
        assert type(error) is errors.NotFound
        assert error.field == field


async def test_a_request_too_large_can_never_succeed(client):
    error = await raised(client.complete("a" * 100_000))
    assert type(error) is errors.InvalidRequest
    assert "larger than max" in error.message


async def test_closing_the_stream_cancels(client, generator):
    generator.endless, generator.pause_s = True, 0.01
    events = client.generate("a", request_id="r1")
    await anext(events)
    await events.aclose()
    await eventually(lambda: generator.closed == ["r1"])


async def test_a_cancelled_task_cancels_and_stays_cancelled(client, generator):
    generator.endless, generator.pause_s = True, 30.0
    task = asyncio.create_task(client.complete("a", request_id="r1"))
    await eventually(lambda: generator.started == ["r1"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: generator.closed == ["r1"])


async def test_cancel_by_id(client, generator):
    generator.endless, generator.pause_s = True, 0.01
    task = asyncio.create_task(client.complete("a", request_id="r1"))
    await eventually(lambda: generator.started == ["r1"])
    assert await client.cancel("r1")
    assert type(await raised(task)) is errors.Cancelled
    assert not await client.cancel("r1")


async def test_a_deadline(client, generator):
    generator.endless, generator.pause_s = True, 30.0
    error = await raised(client.complete("a", timeout_s=0.2))
    assert type(error) is errors.DeadlineExceeded


async def test_a_client_without_a_router_gets_unavailable():
    async with Client("127.0.0.1:1", timeout_s=2.0) as client:
        assert type(await raised(client.model())) is errors.Unavailable
        assert type(await raised(client.complete("a"))) is errors.Unavailable


async def test_a_stream_whose_connection_breaks_says_that_it_may_be_sent_again(generator) -> None:
    generator.endless, generator.pause_s = True, 0.01
    server = await start(generator, max_message_bytes=64 * 1024)
    ends: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", server.port)
        ends.extend((writer, there[1]))
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with Client(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}") as client:
        events = client.generate("a")
        await anext(events)
        for end in ends:
            end.transport.abort()
        with pytest.raises(errors.Unavailable, match="send the request again"):
            [_ async for _ in events]
    proxy.close()
    await server.stop(0)


async def test_a_router_that_stops_loses_no_call_of_a_client_that_is_never_quiet() -> None:
    old = await start(ScriptedGenerator(), reuse_port=True)
    asked, answered, done = itertools.count(), [], False

    async def again_and_again(client: Client) -> None:
        while not done:
            completion = await client.complete("a b", request_id=f"r{next(asked)}", timeout_s=60)
            assert completion.text == "one two three four"
            await client.model()
            answered.append(completion)

    try:
        async with Client(f"127.0.0.1:{old.port}") as client, asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(again_and_again(client))
            for _ in range(5):
                before = len(answered)
                await eventually(lambda before=before: len(answered) >= before + 40)
                new = await start(ScriptedGenerator(), port=old.port, reuse_port=True)
                last, old = old, new
                await last.stop(5)
            done = True
    finally:
        await old.stop(0)


async def test_a_connection_that_a_leaving_router_resets_is_made_again(generator):
    """What waits to be accepted where a router closes its port is reset; another router listens."""
    reset = asyncio.Event()

    def accepted(reader, writer):
        writer.transport.abort()
        reset.set()

    leaving = await asyncio.start_server(accepted, "127.0.0.1", 0)
    port = leaving.sockets[0].getsockname()[1]
    async with Client(f"127.0.0.1:{port}") as client:
        asked = asyncio.create_task(client.complete("a b", max_tokens=2))
        await reset.wait()
        leaving.close()
        server = await start(generator, port=port)
        assert (await asked).text == "one two"
    await server.stop(0)
