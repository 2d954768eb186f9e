"""Responses over the whole path: structured, with tools, and in the background on two routers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import openai
import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import Response
from pydantic import BaseModel

from tests.cluster.gateway.responses.test_numbers import by_character
from tests.cluster.gateway.responses.test_openai_client import dumped, events_of
from tests.eventually import eventually
from tests.integration.local import cluster
from tests.integration.test_resumable import die, two_routers
from tests.integration.test_structured import CLOSING as CLOSING_JSON
from tests.integration.test_tools import CLOSING, SCHEMA

TOOLS = [
    {"type": "function", "name": name, "description": "It.", "parameters": SCHEMA}
    for name in ("get_weather", "put")
]
SAMPLED = {"seed": 3, "logit_bias": {str(token): bias for token, bias in CLOSING.items()}}
TEXT = {
    "input": "weather",
    "temperature": 0,
    "max_output_tokens": 60,
    "extra_body": {"ignore_eos": True},
}
CALLS = {
    "input": "weather",
    "max_output_tokens": 900,
    "tools": TOOLS,
    "tool_choice": "required",
    "extra_body": SAMPLED,
}
GUIDED = {
    "input": "weather",
    "max_output_tokens": 900,
    "temperature": 0,
    "extra_body": {"grammar": {"regex": "<think>[a-z]{30}</think>[A-Z]{30}"}},
}


@pytest.fixture
def config(config):
    router = replace(config.router, reasoning_parser="think")
    return replace(config, router=router, decode=replace(config.decode, replicas=2))


@asynccontextmanager
async def clients_of(*routers):
    """OpenAI's clients of some routers, and the name of the model."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=f"http://{one.http_address}/v1", api_key="none", max_retries=0
                )
            )
            for one in routers
        ]
        yield clients, routers[0].router.model.name


async def test_answers_by_schema_and_tools_go_round(config):
    class Found(BaseModel):
        city: str
        days: int

    async with cluster(config) as local, clients_of(local.router) as ((client,), model):
        bias = {str(token): amount for token, amount in CLOSING_JSON.items()}
        parsed = await client.responses.parse(
            model=model,
            input="weather",
            text_format=Found,
            max_output_tokens=500,
            extra_body={"seed": 3, "logit_bias": bias},
        )
        if parsed.status == "completed":
            assert isinstance(parsed.output_parsed, Found)
        reply = await client.responses.create(model=model, **CALLS)
        Response.model_validate(dumped(reply), strict=True)
        assert reply.status == "completed"
        assert {item.type for item in reply.output} == {"function_call"}
        for item in reply.output:
            Draft202012Validator(SCHEMA).validate(json.loads(item.arguments))
        events = await events_of(await client.responses.create(model=model, stream=True, **CALLS))
        streamed = [(item["name"], item["arguments"]) for item in events[-1]["response"]["output"]]
        assert streamed == [(item.name, item.arguments) for item in reply.output]
        history = [{"role": "user", "content": "weather"}, *map(dumped, reply.output)]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
            for item in reply.output
        ]
        again = await client.responses.create(
            model=model, input=history, tools=TOOLS, max_output_tokens=4
        )
        assert again.usage.input_tokens > reply.usage.input_tokens
        guided = await client.responses.create(model=model, **GUIDED)
        reasoning, message = guided.output
        assert (reasoning.type, len(reasoning.content[0].text)) == ("reasoning", 30)
        assert message.content[0].text.isupper()
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=model, input="a " * 5000)
        assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


@pytest.mark.parametrize("asked", [TEXT, CALLS, GUIDED], ids=["text", "calls", "reasoning"])
async def test_two_routers_by_turns_give_each_character_once(config, asked):
    async with (
        two_routers(config) as (local, other, _),
        clients_of(local.router, other) as (clients, model),
    ):
        found, turns = [], 0
        stream = await clients[0].responses.create(
            model=model, background=True, stream=True, **asked
        )
        while True:
            async with stream:
                events = aiter(stream)
                for _ in range(3):
                    event = await anext(events, None)
                    if event is None:
                        break
                    found.append(dumped(event))
            if found[-1]["type"] in ("response.completed", "response.incomplete"):
                break
            turns += 1
            stream = await clients[turns % 2].responses.retrieve(
                found[0]["response"]["id"],
                stream=True,
                starting_after=found[-1]["sequence_number"],
            )
        response_id = found[0]["response"]["id"]
        assert turns
        for client in clients:
            whole = await events_of(await client.responses.retrieve(response_id, stream=True))
            assert by_character(whole) == by_character(found)
            snapshot = await client.responses.retrieve(response_id)
            assert dumped(snapshot) == found[-1]["response"]
        await local.idle()


async def test_a_response_goes_on_where_its_router_dies(config):
    async with (
        two_routers(config) as (local, other, _),
        clients_of(local.router, other) as ((first, second), model),
    ):
        asked = {**TEXT, "max_output_tokens": 300}
        wanted = (await second.responses.create(model=model, **asked)).output_text
        begun = await first.responses.create(model=model, background=True, **asked)
        cut = []
        async with await first.responses.retrieve(begun.id, stream=True) as stream:
            async for event in stream:
                cut.append(dumped(event))
                if len(cut) == 12:
                    break
        await die(local.router)
        stream = await second.responses.retrieve(
            begun.id, stream=True, starting_after=cut[-1]["sequence_number"]
        )
        cut += await events_of(stream)
        text = "".join(event.get("delta", "") for event in cut)
        assert text == wanted
        assert cut[-1]["response"]["output"][0]["content"][0]["text"] == wanted


async def test_polls_alone_have_another_router_go_on(config):
    async with (
        two_routers(config) as (local, other, _),
        clients_of(local.router, other) as ((first, second), model),
    ):
        asked = {**TEXT, "max_output_tokens": 300}
        wanted = (await second.responses.create(model=model, **asked)).output_text
        begun = await first.responses.create(model=model, background=True, **asked)
        await die(local.router)
        found = begun

        async def ended():
            nonlocal found
            found = await second.responses.retrieve(begun.id)
            return found.status != "in_progress"

        async with asyncio.timeout(30):
            while not await ended():
                await asyncio.sleep(0)
        assert (found.status, found.output_text) == ("incomplete", wanted)


async def test_a_response_is_cancelled_from_the_other_router(config):
    async with (
        two_routers(config) as (local, other, _),
        clients_of(local.router, other) as ((first, second), model),
    ):
        asked = {**TEXT, "max_output_tokens": 1900}
        begun = await first.responses.create(model=model, background=True, **asked)
        found = await second.responses.cancel(begun.id)
        assert found.status == "cancelled"
        assert (await first.responses.retrieve(begun.id)).status == "cancelled"
        await eventually(lambda: not any(one.load().used for one in local.replicas), 10)
