"""Calls of tools and reasoning over the whole path, forced by grammars on a model of noise."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from websockets.asyncio.client import connect

from cluster.api import ChatMessage, ChatPrompt, Started, Summary, Tokens, Tool, ToolUse
from cluster.api.chats.tools import whole_calls
from engine.types.grammar import Grammar
from tests import tiny
from tests.cluster.gateway.answers.event_source import EventSource
from tests.eventually import eventually
from tests.integration.local import cluster, slow_steps
from tests.integration.test_resumable import two_routers
from tests.integration.test_resumable_http import bytes_of
from tests.integration.test_resume import busy, die

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
GET = Tool("get_weather", "The weather.", json.dumps(SCHEMA), True)
PUT = Tool("put", parameters=json.dumps(SCHEMA))
FUNCTIONS = [
    {"type": "function", "function": {"name": one.name, "parameters": SCHEMA}} for one in (GET, PUT)
]
ASKED = (ChatMessage("user", "weather"),)
_encode = tiny.make_tokenizer().backend_tokenizer.encode
CLOSING = {_encode(text).ids[0]: 8.0 for text in '"}<'} | {tiny.EOS: 12.0}
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 900, "logit_bias": CLOSING}


def chat(mode="required", named="", parallel=True):
    return ChatPrompt(ASKED, ToolUse((GET, PUT), mode, named, parallel))


class Answer:
    """What a client has of one choice."""

    def __init__(self):
        self.stream_id, self.ids, self.text, self.reasoning, self.calls = "", [], "", "", []
        self.finish = self.replica = None

    async def read(self, events, most=None):
        """Read all events, or so many Tokens."""
        async for event in events:
            if isinstance(event, Started):
                self.stream_id = event.stream_id
            elif isinstance(event, Tokens):
                self.ids += event.ids
                self.text += event.text
                self.reasoning += event.reasoning
                self.calls += event.tool_calls
                self.finish = event.finish_reason
                most = most and most - 1
                if most == 0:
                    break
            elif isinstance(event, Summary):
                self.replica = event.choices[0].decode_replica
        return self

    @property
    def shown(self):
        calls = [(one.name, one.arguments) for one in whole_calls(self.calls)]
        return self.text, self.reasoning, calls, self.finish


@pytest.fixture
def config(config):
    return replace(config, decode=replace(config.decode, replicas=2))


async def test_forced_calls_have_names_ids_and_valid_arguments(config):
    async with cluster(config) as local:
        for prompt, names in (
            (chat(), {"get_weather", "put"}),
            (chat(named="put"), {"put"}),
            (chat(parallel=False), {"get_weather", "put"}),
        ):
            found = await local.client.complete(prompt, n=3, **SAMPLED)
            ids = [call.id for choice in found.choices for call in choice.tool_calls]
            assert len(set(ids)) == len(ids)
            for choice in found.choices:
                assert choice.finish_reason == "tool_calls" and not choice.text
                for call in choice.tool_calls:
                    assert call.name in names
                    Draft202012Validator(SCHEMA).validate(json.loads(call.arguments))
                if prompt.use.named or not prompt.use.parallel:
                    assert len(choice.tool_calls) == 1


async def test_openais_client_reads_streamed_calls(config):
    async with (
        cluster(config) as local,
        openai.AsyncOpenAI(
            base_url=f"http://{local.router.http_address}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        asked = {
            "model": local.router.router.model.name,
            "messages": [{"role": "user", "content": "weather"}],
            "tools": FUNCTIONS,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "seed": 3,
            "max_tokens": 900,
            "logit_bias": {str(token): bias for token, bias in CLOSING.items()},
        }
        whole = (await client.chat.completions.create(**asked)).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content is None
        (call,) = whole.message.tool_calls
        Draft202012Validator(SCHEMA).validate(json.loads(call.function.arguments))
        deltas = []
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            deltas += chunk.choices[0].delta.tool_calls or []
        first, *rest = deltas
        assert first.id and first.type == "function" and first.function.name == "get_weather"
        assert rest and not any(one.id or one.function.name for one in rest)
        arguments = "".join(one.function.arguments for one in deltas)
        assert arguments == call.function.arguments
        async with client.chat.completions.stream(**asked) as stream:
            (parsed,) = (await stream.get_final_completion()).choices[0].message.tool_calls
        assert parsed.function.arguments == arguments


@pytest.mark.parametrize("local_tokens", [0, 10_000], ids=["prefill", "local"])
@pytest.mark.parametrize("options", [SAMPLED, SAMPLED | {"temperature": 0}])
async def test_a_guided_stream_with_calls_goes_on_where_its_replica_dies(
    config, local_tokens, options
):
    """In the middle of the arguments of a call; the tokens are the same, in float32."""
    assert config.model.dtype == "float32"
    prefill = replace(config.prefill, local_prefill_tokens=local_tokens)
    async with cluster(replace(config, prefill=prefill)) as local:
        wanted = await Answer().read(local.client.generate(chat(), **options))
        answer = Answer()
        task = asyncio.create_task(answer.read(local.client.generate(chat(), **options)))
        await eventually(lambda: answer.calls and "".join(c.arguments for c in answer.calls), 30.0)
        died = busy(local.decode)
        await die(died)
        had = len(answer.ids)
        await task
        assert answer.ids == wanted.ids and 0 < had < len(wanted.ids)
        assert answer.shown == wanted.shown and whole_calls(answer.calls)
        assert answer.replica != died.id
        for call in whole_calls(answer.calls):
            Draft202012Validator(SCHEMA).validate(json.loads(call.arguments))


async def test_forced_calls_write_the_special_tokens_of_their_markers(config, tmp_path):
    tiny.make(tmp_path)
    tokenizer = tiny.make_tokenizer()
    marks = ["[TOOL_CALLS]", "[ARGS]"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.chat_template = tokenizer.chat_template + "{# [TOOL_CALLS] [ARGS] #}"
    tokenizer.save_pretrained(tmp_path)
    config = replace(config, model=replace(config.model, path=str(tmp_path)))
    async with cluster(config) as local:
        for options in ({}, {"stop": ["zzz"]}):
            asked = local.client.generate(chat(named="put"), **SAMPLED | options)
            answer = await Answer().read(asked)
            begin = tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")
            assert answer.ids[0] == begin and answer.ids.count(begin) == 1
            [call] = whole_calls(answer.calls)
            assert call.name == "put" and answer.finish == "tool_calls" and not answer.text
            Draft202012Validator(SCHEMA).validate(json.loads(call.arguments))


async def test_forced_calls_with_a_block_for_each_argument(config):
    config = replace(config, router=replace(config.router, tool_parser="qwen3_coder"))
    async with cluster(config) as local:
        answer = await Answer().read(local.client.generate(chat(), **SAMPLED))
        for call in whole_calls(answer.calls):
            Draft202012Validator(SCHEMA).validate(json.loads(call.arguments))
        assert answer.calls and answer.finish == "tool_calls"


@pytest.mark.parametrize("pieces", [1, 7, 40])
async def test_a_stream_with_calls_is_resumed_exactly(config, pieces):
    async with two_routers(config) as (_, _, client):
        wanted = await Answer().read(client.generate(chat(), **SAMPLED))
        answer = Answer()
        await answer.read(client.generate(chat(), resumable=True, **SAMPLED), most=pieces)
        stream_id = answer.stream_id
        ids = [call.id for call in answer.calls if call.id]
        whole = await Answer().read(client.resume(stream_id))
        await answer.read(client.resume(stream_id, [len(answer.ids)]))
        assert answer.shown == wanted.shown == whole.shown
        assert whole_calls(answer.calls) == whole_calls(whole.calls)
        assert ids == [call.id for call in whole.calls if call.id][: len(ids)]


BODY = {
    "messages": [{"role": "user", "content": "weather"}],
    "tools": FUNCTIONS,
    "tool_choice": "required",
    "stream": True,
    "logit_bias": {str(token): bias for token, bias in CLOSING.items()},
    "seed": 3,
    "max_tokens": 900,
}


def gathered(data):
    """The calls in the chunks of an answer: id, name and arguments of each."""
    calls = {}
    for chunk in map(json.loads, data[:-1]):
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += piece.get("id", "")
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"]["arguments"]
    return calls


async def test_a_stream_with_calls_is_resumed_over_http(config):
    async with two_routers(config) as (local, other, _), httpx.AsyncClient(timeout=30) as client:
        urls = [f"http://{one.http_address}/v1" for one in (local.router, other)]
        path = urls[0] + "/chat/completions"
        plain = EventSource().read((await client.post(path, json=BODY)).content)
        slow_steps(local.decode, 0.02)  # else few events may hold the whole answer
        source, turns = EventSource(), 0
        request = client.build_request("POST", path, json=BODY | {"resumable": True})
        while source.data[-1:] != ["[DONE]"]:
            source.read(await bytes_of(client, request, 6))
            turns += 1
            headers = {} if source.last_id is None else {"last-event-id": source.last_id}
            request = client.build_request("GET", urls[turns % 2] + "/streams", headers=headers)
        found, wanted = gathered(source.data), gathered(plain.data)
        assert turns > 1 and found
        for call, same in zip(found.values(), wanted.values(), strict=True):
            assert len(call["id"]) == 9
            assert call | {"id": ""} == same | {"id": ""}


async def test_a_websocket_has_the_same_pieces(config):
    async with cluster(config) as local:
        async with connect(f"ws://{local.router.http_address}/v1/stream") as socket:
            await socket.send(json.dumps(BODY | {"type": "chat", "id": "a"}))
            pieces, finish = [], None
            while (message := json.loads(await socket.recv()))["type"] != "end":
                if message["type"] == "tokens":
                    pieces += message.get("tool_calls", ())
                    finish = message["finish_reason"]
        assert pieces[0]["id"] and pieces[0]["function"]["name"] in ("get_weather", "put")
        assert finish == "tool_calls"


async def test_reasoning_stands_apart(config):
    config = replace(config, router=replace(config.router, reasoning_parser="think"))
    grammar = Grammar("regex", "<think>[a-z]{30}</think>[A-Z]{30}")
    async with cluster(config) as local:
        asked = {"temperature": 0, "max_tokens": 900, "grammar": grammar}
        answer = await Answer().read(local.client.generate(ChatPrompt(ASKED), **asked))
        assert answer.reasoning.islower() and len(answer.reasoning) == 30
        assert answer.text.isupper() and len(answer.text) == 30
