"""What the real Anthropic client makes of the HTTP front end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from cluster.api import (
    ChatMessage,
    ChoiceSummary,
    Progress,
    Started,
    Summary,
    Tokens,
    ToolCallDelta,
)
from cluster.gateway.answers import comments
from cluster.tenants.api_keys import ApiKeys
from cluster.tenants.hashed_keys import KeyOwner
from engine import errors
from tests.cluster.gateway.http_listener import asking, front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

HELLO = [{"role": "user", "content": "hello there"}]
ASKED = {"model": "demo", "max_tokens": 3, "messages": HELLO}
URL = "/v1/messages"
TOOL = {"name": "get", "description": "Gets.", "input_schema": {"type": "object"}}
CALLS = [
    Tokens(0, 0, (1,), "", reasoning="We"),
    Tokens(0, 1, (1,), "I ", reasoning="ll"),
    Tokens(0, 2, (1,), "ask.", tool_calls=(ToolCallDelta(0, "c1", "get", '{"a'),)),
    Tokens(0, 3, (1,), "", tool_calls=(ToolCallDelta(0, arguments='": 1}'),)),
    Tokens(0, 4, (1,), "", "tool_calls", tool_calls=(ToolCallDelta(1, "c2", "get", "{}"),)),
]


@pytest.fixture
async def client(generator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with front_end(generator) as port, client_of(port) as opened:
        yield opened


def client_of(port, **options):
    url = f"http://127.0.0.1:{port}"
    given = {"api_key": "none", "max_retries": 0} | options
    return anthropic.AsyncAnthropic(base_url=url, **given)


def answering(generator, tokens, cached=0):
    async def generate(request):
        generator.requests.append(request)
        yield Started(request.request_id, "demo", 7, 1)
        for one in tokens:
            yield one
        choice = ChoiceSummary(0, 0, 0, 0, 0, 0, 0, 0, 0, "p", "d", cached_tokens=cached)
        yield Summary(7, len(tokens), (choice,), 1.0)

    generator.generate = generate


async def streamed(client, **more):
    """The message that the helper collects, and the types of its raw events."""
    async with client.messages.stream(**ASKED | more) as stream:
        kinds = [event.type async for event in stream]
        return await stream.get_final_message(), kinds


def shown(message):
    return {name: one for name, one in message.model_dump(mode="json").items() if name != "id"}


async def test_a_message(client, generator):
    message = await client.messages.create(**ASKED, system="be", stop_sequences=["x"])
    assert (message.type, message.role, message.model) == ("message", "assistant", "demo")
    assert message.id == f"msg_{generator.requests[0].request_id}"
    (block,) = message.content
    assert (block.type, block.text) == ("text", "one two three")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (3, 3, 0)
    assert [one.role for one in generator.requests[0].prompt.messages] == ["system", "user"]


async def test_the_events_of_a_stream_come_in_anthropics_order(client, generator):
    stream = await client.messages.create(**ASKED, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        *("message_start", "content_block_start"),
        *("content_block_delta",) * 3,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start, end = events[0].message, events[-2]
    assert (start.content, start.stop_reason, start.usage.input_tokens) == ([], None, 2)
    assert end.delta.stop_reason == "max_tokens"
    assert (end.usage.input_tokens, end.usage.output_tokens) == (2, 3)


async def test_the_bytes_of_a_stream(generator):
    async with asking(generator) as http:
        response = await http.post(URL, json=ASKED | {"stream": True, "request_id": "r1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"] == "r1"
    events = response.text.removesuffix("\n\n").split("\n\n")
    for event in events:
        name, data = event.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
    assert events[-1] == 'event: message_stop\ndata: {"type":"message_stop"}'


@pytest.mark.parametrize("tokens", [CALLS, CALLS[2:], [replace(CALLS[0], finish_reason="stop")]])
async def test_the_helper_collects_the_same_message_as_the_whole(client, generator, tokens):
    answering(generator, tokens, cached=4)
    whole = await client.messages.create(**ASKED)
    found, _ = await streamed(client)
    assert shown(found) == shown(whole)
    usage = whole.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (3, 4)


async def test_thinking_text_and_calls_are_blocks(client, generator):
    answering(generator, CALLS)
    message, kinds = await streamed(client, tools=[TOOL])
    assert [block.type for block in message.content] == [
        *("thinking", "text", "tool_use", "tool_use")
    ]
    thinking, text, first, second = message.content
    assert (thinking.thinking, text.text) == ("Well", "I ask.")
    assert (first.id, first.name, first.input) == ("c1", "get", {"a": 1})
    assert (second.id, second.input) == ("c2", {})
    assert message.stop_reason == "tool_use"
    assert kinds.count("input_json") == 3 and kinds.count("thinking") == 2


async def test_a_call_that_was_cut_has_its_input_so_far(client, generator):
    cut = Tokens(0, 3, (1,), "", "length", tool_calls=(ToolCallDelta(0, arguments='": 1'),))
    answering(generator, [*CALLS[:3], cut])
    whole = await client.messages.create(**ASKED)
    assert whole.content[-1].input == {"a": 1}
    assert whole.stop_reason == "max_tokens"
    found, _ = await streamed(client)
    assert shown(found) == shown(whole)


async def test_an_answer_goes_back_with_the_results_of_its_calls(client, generator):
    answering(generator, CALLS)
    message = await client.messages.create(**ASKED, tools=[TOOL])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
        for block in message.content
        if block.type == "tool_use"
    ]
    again = [
        *HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    await client.messages.create(**ASKED | {"messages": again}, tools=[TOOL])
    turns = generator.requests[-1].prompt.messages
    assert [one.role for one in turns] == ["user", "assistant", "tool", "tool"]
    assert (turns[1].content, turns[1].reasoning) == ("I ask.", "Well")
    assert [(one.id, json.loads(one.arguments)) for one in turns[1].tool_calls] == [
        *(("c1", {"a": 1}), ("c2", {}))
    ]
    assert turns[3] == ChatMessage("tool", "done", (), "c2")


async def test_the_stop_sequence_that_ended_the_answer_is_named(client, generator):
    ended = [Tokens(0, 0, (0,), "one"), Tokens(0, 1, (1, 2), " ", "stop")]
    answering(generator, ended)
    for stops, found in ((["two"], None), (["four", "three"], "three"), ([], None)):
        message = await client.messages.create(**ASKED, stop_sequences=stops)
        assert message.stop_sequence == found
        assert message.stop_reason == ("end_turn" if found is None else "stop_sequence")
        same, _ = await streamed(client, stop_sequences=stops)
        assert shown(same) == shown(message)


async def test_an_answer_without_anything_has_no_blocks(client, generator):
    answering(generator, [Tokens(0, 0, (9,), "", "stop")])
    message = await client.messages.create(**ASKED)
    assert (message.content, message.stop_reason) == ([], "end_turn")
    found, _ = await streamed(client)
    assert shown(found) == shown(message)


class Fact(BaseModel):
    fact: str


async def test_the_helper_for_structured_answers(client, generator):
    answering(generator, [Tokens(0, 0, (1,), '{"fact": "x"}', "stop")])
    message = await client.messages.parse(**ASKED, output_format=Fact)
    assert message.parsed_output == Fact(fact="x")
    grammar = generator.requests[-1].sampling.grammar
    assert json.loads(grammar.text)["required"] == ["fact"]
    async with client.messages.stream(**ASKED, output_format=Fact) as stream:
        assert (await stream.get_final_message()).parsed_output == Fact(fact="x")


async def test_the_times_come_where_they_are_asked_for(client, generator):
    more = {"extra_body": {"timing": True}}
    message = await client.messages.create(**ASKED, **more)
    async with client.messages.stream(**ASKED, **more) as stream:
        deltas = [event async for event in stream if event.type == "message_delta"]
    for timing in (message.timing, deltas[-1].timing):
        assert timing["total_s"] == 1.5
        assert [one["prefill_replica"] for one in timing["choices"]] == ["p0"]
    assert all(one.timing for one in generator.requests), "the router tells no stages unasked"
    assert "timing" not in (await client.messages.create(**ASKED)).to_dict()


async def test_a_silent_stream_has_pings(client, generator, monkeypatch):
    monkeypatch.setattr(comments, "HEARTBEAT_S", 0.0)
    generator.heartbeats = 2
    answer = await streamed(client)
    assert answer[0].content[0].text == "one two three"
    textless = [Progress(0, "queued"), *(Tokens(0, at, (at,), "") for at in range(2))]
    answering(generator, [*textless, Tokens(0, 2, (1,), "end", "stop")])
    async with client.messages.with_streaming_response.create(**ASKED, stream=True) as raw:
        lines = [line async for line in raw.iter_lines()]
    assert lines.count("event: ping") >= 2
    assert lines[lines.index("event: ping") + 1] == 'data: {"type":"ping"}'
    assert (await streamed(client))[0].content[0].text == "end"


async def test_tokens_are_counted(client, generator):
    found = await client.messages.count_tokens(
        model="demo", messages=HELLO, system="be brief", tools=[TOOL], thinking={"type": "disabled"}
    )
    assert found.input_tokens == 4
    (prompt,) = generator.counted
    assert [one.role for one in prompt.messages] == ["system", "user"]
    assert prompt.use.tools[0].name == "get"
    assert not generator.requests
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="other", messages=HELLO)
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.count_tokens(model="demo", messages=[])


ERRORS = [
    (errors.InvalidRequest("x"), anthropic.BadRequestError, "invalid_request_error"),
    (errors.PromptTooLong("x"), anthropic.BadRequestError, "invalid_request_error"),
    (errors.AlreadyRunning("x"), anthropic.ConflictError, "conflict_error"),
    (errors.NotFound("x"), anthropic.NotFoundError, "not_found_error"),
    (errors.Overloaded("x", retry_after_s=2.0), anthropic.RateLimitError, "rate_limit_error"),
    (errors.Unavailable("x", retry_after_s=2.0), anthropic.OverloadedError, "overloaded_error"),
    (errors.ReplicaLost("x"), anthropic.OverloadedError, "overloaded_error"),
    (errors.DeadlineExceeded("x"), anthropic.GatewayTimeoutError, "timeout_error"),
    (errors.Cancelled("x"), anthropic.APIStatusError, "api_error"),
    (errors.Internal("x"), anthropic.InternalServerError, "api_error"),
    (ZeroDivisionError("x"), anthropic.InternalServerError, "api_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(("error", "kind", "name"), ERRORS)
async def test_errors_before_the_first_token(client, generator, error, kind, name, after, stream):
    generator.error, generator.after = error, after
    with pytest.raises(kind) as caught:
        await client.messages.create(**ASKED, stream=stream)
    found = caught.value
    assert found.type == name
    assert found.request_id == found.body["request_id"] == generator.closed[0]
    assert set(found.body) == {"type", "error", "request_id"}
    assert found.body["type"] == "error" and set(found.body["error"]) == {"type", "message"}
    if getattr(error, "retry_after_s", None):
        assert found.response.headers["retry-after"] == "2"


@pytest.mark.parametrize(("error", "_", "name"), ERRORS)
async def test_errors_after_the_first_token_are_events(client, generator, error, _, name):
    generator.error, generator.after = error, 3
    text = ""
    with pytest.raises(anthropic.APIStatusError) as caught:
        async with client.messages.stream(**ASKED) as stream:
            async for piece in stream.text_stream:
                text += piece
    assert text == "one two"
    assert caught.value.type == name
    message = "internal error" if isinstance(error, ZeroDivisionError) else "x"
    assert caught.value.api_message == message
    assert len(generator.closed) == 1


async def test_the_beta_client(client):
    message = await client.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"])
    assert message.content[0].text == "one two three"


async def test_a_closed_stream_cancels(client, generator):
    generator.endless, generator.pause_s = True, 0.005
    async with client.messages.stream(**ASKED) as stream:
        async for _ in stream.text_stream:
            break
    await eventually(lambda: len(generator.closed) == 1)
    assert not generator.finished


async def test_a_client_comes_back_after_a_refusal():
    class Once(ScriptedGenerator):
        async def generate(self, request):
            self.error = None if self.closed else errors.Unavailable("x", retry_after_s=0.01)
            async for event in super().generate(request):
                yield event

    once = Once()
    async with front_end(once) as port, client_of(port, max_retries=1) as client:
        message = await client.messages.create(**ASKED)
    assert message.content[0].text == "one two three"
    assert len(once.requests) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "name"),
    [
        (URL, ASKED | {"messages": []}, 400, "invalid_request_error"),
        (URL, ASKED | {"metadata": {"user_id": "x" * 9000}}, 413, "request_too_large"),
        (f"{URL}/batches", ASKED, 404, "not_found_error"),
        (f"{URL}/count_tokens", {"model": "demo"}, 400, "invalid_request_error"),
    ],
)
async def test_refusals_around_a_body_have_the_form(generator, path, body, status, name):
    async with asking(generator, max_body_bytes=4096) as http:
        found = await http.post(path, json=body)
    assert (found.status_code, found.json()["error"]["type"]) == (status, name)
    assert found.headers["request-id"] == found.json()["request_id"]


async def test_methods_types_and_origins_have_the_form(generator):
    async with asking(generator) as http:
        refused = [
            (await http.get(URL), 405, "invalid_request_error"),
            (
                await http.post(URL, content="{}", headers={"content-type": "text/plain"}),
                415,
                "invalid_request_error",
            ),
            (
                await http.post(URL, json=ASKED, headers={"origin": "https://a.example"}),
                403,
                "permission_error",
            ),
        ]
    for found, status, name in refused:
        assert (found.status_code, found.json()["error"]["type"]) == (status, name)
    assert not generator.requests


@pytest.fixture
def keys():
    owners = {"good": KeyOwner("acme", "tenant"), "sk-op": KeyOwner("root", "operator")}
    return ApiKeys({hashlib.sha256(key.encode()).hexdigest(): one for key, one in owners.items()})


async def test_keys_come_in_either_header(generator, keys):
    async with front_end(generator, keys=keys) as port:
        for given in ({"api_key": "good"}, {"api_key": None, "auth_token": "good"}):
            async with client_of(port, **given) as client:
                await client.messages.create(**ASKED)
                await client.messages.count_tokens(model="demo", messages=HELLO)
        assert [request.tenant for request in generator.requests] == ["acme", "acme"]
        for key, kind in (("sk-bad", anthropic.AuthenticationError), ("sk-op", None)):
            async with client_of(port, api_key=key) as client:
                with pytest.raises(kind or anthropic.PermissionDeniedError) as caught:
                    await client.messages.create(**ASKED)
                with pytest.raises(kind or anthropic.PermissionDeniedError):
                    await client.messages.count_tokens(model="demo", messages=HELLO)
                assert key not in json.dumps(caught.value.body)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            both = {"authorization": "Bearer sk-bad", "x-api-key": "good"}
            assert (await http.post(URL, json=ASKED)).status_code == 401
            assert (await http.post(URL, json=ASKED, headers=both)).status_code == 401
            assert (await http.get("/metrics", headers={"x-api-key": "sk-op"})).status_code == 401
    assert len(generator.requests) == 2
