"""What the real OpenAI client makes of `/v1/responses`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    TextPart,
    Tokens,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolUse,
)
from engine import errors
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

EVENTS = TypeAdapter(ResponseStreamEvent)
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": SCHEMA,
}
DONE = {
    "response.reasoning_text.done",
    "response.output_text.done",
    "response.function_call_arguments.done",
}


class PartsGenerator(ScriptedGenerator):
    """Answers with the parts that it is told, a token each."""

    parts: tuple[dict, ...] = ()

    async def _events(self, request):
        async for event in super()._events(request):
            if not (self.parts and isinstance(event, Tokens)):
                yield event
                continue
            if event.index == 0:
                for index, part in enumerate(self.parts):
                    last = index == len(self.parts) - 1
                    empty = {"text": "", "finish_reason": "stop" if last else None}
                    yield replace(event, index=index, **empty | part)


def thoughts() -> tuple[dict, ...]:
    """Reasoning, a text, two calls, and a text behind them."""
    second = ToolCallDelta(1, "c1", "weather", "")
    return (
        {"reasoning": "I "},
        {"reasoning": "think", "text": "So "},
        {"text": "be"},
        {"text": " it", "tool_calls": (ToolCallDelta(0, "c0", "weather", '{"x"'),)},
        {"tool_calls": (ToolCallDelta(0, arguments=': "a"}'),)},
        {"text": "Two", "tool_calls": (second,), "parts": (second, TextPart("Two"))},
        {"tool_calls": (ToolCallDelta(1, arguments="{}"),), "finish_reason": "tool_calls"},
    )


@pytest.fixture
def generator() -> PartsGenerator:
    return PartsGenerator()


@pytest.fixture
async def client(generator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        front_end(generator) as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        ) as opened,
    ):
        yield opened


def dumped(document) -> dict:
    return document.model_dump(exclude_unset=True, mode="json", by_alias=True)


async def events_of(stream) -> list[dict]:
    """The events of a stream, each in exactly the form that OpenAI's types have."""
    found = [dumped(event) async for event in stream]
    for event in found:
        EVENTS.validate_python(event, strict=True)
    return found


async def test_a_whole_response(client, generator):
    reply = await client.responses.create(
        model="demo",
        input="hello there",
        instructions="Be brief.",
        max_output_tokens=3,
        metadata={"a": "b"},
        user="me",
    )
    Response.model_validate(dumped(reply), strict=True)
    assert reply.output_text == "one two three"
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.metadata, reply.user, reply.instructions) == ({"a": "b"}, "me", "Be brief.")
    assert reply.usage.model_dump(exclude_none=True) == {
        "input_tokens": 4,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    (request,) = generator.requests
    turns = ChatMessage("system", "Be brief."), ChatMessage("user", "hello there")
    assert request.prompt == ChatPrompt(turns)
    assert request.sampling.max_tokens == 3
    assert not request.resumable


async def test_a_streamed_response_has_openais_events_in_order(client, generator):
    generator.parts = ({"text": "a"}, {"text": "b"})
    events = await events_of(await client.responses.create(model="demo", input="x", stream=True))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert [event["status"] for event in (events[0]["response"], events[-1]["response"])] == [
        "in_progress",
        "completed",
    ]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


async def test_reasoning_calls_and_text_are_items_of_their_own(client, generator):
    generator.parts = thoughts()
    whole = await client.responses.create(model="demo", input="x", tools=[WEATHER])
    Response.model_validate(dumped(whole), strict=True)
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    reasoning, message, first, second, behind = whole.output
    assert [part.text for part in reasoning.content] == ["I think"]
    assert (message.content[0].text, behind.content[0].text) == ("So be it", "Two")
    assert (first.call_id, first.name, first.arguments) == ("c0", "weather", '{"x": "a"}')
    assert (second.call_id, second.arguments) == ("c1", "{}")
    assert len({item.id for item in whole.output}) == 5
    assert whole.status == "completed"
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    stream = await client.responses.create(model="demo", input="x", tools=[WEATHER], stream=True)
    events = await events_of(stream)
    same = {"id": 0, "output_index": 0}
    for item, other in zip(whole.output, events[-1]["response"]["output"], strict=True):
        assert dumped(item) | same == other | same | {"id": 0}
    texts: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"] in DONE:
            assert texts[event["item_id"]] == event.get("text", event.get("arguments"))
    assert [*texts.values()] == ["I think", "So be it", '{"x": "a"}', "{}", "Two"]
    (request, _) = generator.requests
    tool = Tool("weather", "The weather.", json.dumps(SCHEMA))
    assert request.prompt.use == ToolUse((tool,))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_has_its_stages_where_the_client_asks(client, stream):
    asked = {"model": "demo", "input": "hello", "stream": stream}
    found = await client.responses.create(**asked, extra_body={"timing": True})
    whole = (await events_of(found))[-1]["response"] if stream else dumped(found)
    assert whole["timing"]["total_s"] >= 0 and whole["timing"]["choices"][0]["choice"] == 0
    plain = await client.responses.create(model="demo", input="hello")
    assert "timing" not in dumped(plain)


async def test_the_clients_own_stream_gathers_the_response(client, generator):
    generator.parts = thoughts()
    async with client.responses.stream(model="demo", input="x", tools=[WEATHER]) as stream:
        final = await stream.get_final_response()
    assert final.output_text == "So be itTwo"


async def test_a_structured_answer_is_parsed(client, generator):
    class Found(BaseModel):
        x: str

    generator.parts = ({"text": '{"x":'}, {"text": ' "y"}'})
    reply = await client.responses.parse(model="demo", input="x", text_format=Found)
    assert reply.output_parsed == Found(x="y")
    grammar = generator.requests[0].sampling.grammar
    assert (grammar.kind, grammar.field) == ("json_schema", "text.format")
    assert json.loads(grammar.text)["properties"].keys() == {"x"}
    assert reply.text.format.type == "json_schema"
    free = {"format": {"type": "json_object"}}
    await client.responses.create(model="demo", input="x", text=free)
    assert json.loads(generator.requests[1].sampling.grammar.text) == {"type": "object"}


async def test_tools_go_round(client, generator):
    generator.parts = thoughts()
    asked = {"model": "demo", "tools": [WEATHER | {"strict": True}], "parallel_tool_calls": False}
    history = [{"role": "user", "content": [{"type": "input_text", "text": "the weather?"}]}]
    reply = await client.responses.create(
        input=history, tool_choice={"type": "function", "name": "weather"}, **asked
    )
    history += [dumped(item) for item in reply.output[:4]]
    history += [
        {"type": "function_call_output", "call_id": "c0", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "sun"}],
        },
        {"role": "developer", "content": "Be kind."},
    ]
    generator.parts = ({"text": "Rain."},)
    again = await client.responses.create(input=history, tool_choice="none", **asked)
    assert again.output_text == "Rain."
    first, second = generator.requests
    tools = (Tool("weather", "The weather.", json.dumps(SCHEMA), True),)
    assert first.prompt.use == ToolUse(tools, "required", "weather", False)
    assert second.prompt.use == ToolUse(tools, "none", "", False)
    calls = ToolCall("c0", "weather", '{"x": "a"}'), ToolCall("c1", "weather", "{}")
    assert second.prompt.messages == (
        ChatMessage("user", "the weather?"),
        ChatMessage("assistant", "So be it", calls, reasoning="I think"),
        ChatMessage("tool", "rain", tool_call_id="c0"),
        ChatMessage("tool", "sun", tool_call_id="c1"),
        ChatMessage("system", "Be kind."),
    )


async def test_every_other_parameter_arrives(client, generator):
    reply = await client.responses.create(
        model="demo",
        input="x",
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=True,
        truncation="disabled",
        service_tier="auto",
        prompt_cache_key="k",
        extra_body={"seed": 5, "top_k": 3, "endpoint": "report", "request_id": "mine"},
    )
    (request,) = generator.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.top_k) == (0.5, 0.9, 5, 3)
    assert (request.endpoint, request.request_id) == ("report", "mine")
    assert json.loads(request.prompt.template_kwargs) == {"reasoning_effort": "low"}
    assert (reply.id, reply.reasoning.effort) == ("resp_mine", "low")
    assert reply.model_extra["store"] is False


async def test_log_probabilities(client):
    include = ["message.output_text.logprobs"]
    reply = await client.responses.create(model="demo", input="x", include=include, top_logprobs=2)
    listing = reply.output[0].content[0].logprobs
    assert [one.token for one in listing] == ["one", " two", " three", " four"]
    assert [(top.token, top.logprob) for top in listing[0].top_logprobs] == [
        ("one", -0.5),
        ("bytes:\\xff", -9999.0),
    ]
    stream = await client.responses.create(model="demo", input="x", include=include, stream=True)
    events = await events_of(stream)
    deltas = [one for event in events if "delta" in event for one in event["logprobs"]]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert deltas == done["logprobs"]
    assert [one["token"] for one in deltas] == ["one", " two", " three", " four"]


ERRORS = [
    (errors.InvalidRequest("max_tokens is x", field="max_tokens"), openai.BadRequestError),
    (errors.PromptTooLong("x", field="messages"), openai.BadRequestError),
    (errors.Overloaded("x", retry_after_s=2.0), openai.RateLimitError),
    (errors.Unavailable("x"), openai.InternalServerError),
    (ZeroDivisionError("x"), openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "kind"), ERRORS)
async def test_errors_before_the_response_have_their_status(client, generator, error, kind, stream):
    generator.error = error
    with pytest.raises(kind) as caught:
        await client.responses.create(model="demo", input="x", stream=stream)
    assert set(caught.value.body) == {"message", "type", "param", "code"}
    if isinstance(error, errors.InvalidRequest):
        assert caught.value.param in ("max_output_tokens", "input")
        assert not caught.value.body["message"].startswith("max_tokens")


async def test_an_error_in_the_stream_fails_the_response(client, generator):
    generator.error, generator.after = errors.Overloaded("full", retry_after_s=0.25), 3
    events = await events_of(await client.responses.create(model="demo", input="x", stream=True))
    told, last = events[-2:]
    assert (told["type"], told["code"], told["message"]) == ("error", "overloaded", "full")
    assert told["retry_after_ms"] == 250
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "rate_limit_exceeded", "message": "full"}
    assert last["response"]["output"][0]["content"][0]["text"] == "one two"
    assert last["response"]["output"][0]["status"] == "incomplete"


async def test_a_closed_stream_cancels(client, generator):
    generator.endless, generator.pause_s = True, 0.005
    stream = await client.responses.create(model="demo", input="x", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await eventually(lambda: len(generator.closed) == 1)


async def test_an_unknown_model(client):
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="other", input="x", stream=stream)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_answer_is_the_same(client, generator, stream):
    generator.parts = tuple({"text": "x" * 1000} for _ in range(40))
    reply = await client.responses.create(model="demo", input="x", stream=stream)
    last = (await events_of(reply))[-1]["response"] if stream else dumped(reply)
    (item,) = last["output"]
    assert item["content"][0]["text"] == "x" * 40_000
