"""The Messages API over the whole path: the same answers as of the chat, by the real client."""

from __future__ import annotations

import anthropic
import openai
import pytest
from jsonschema import Draft202012Validator

from tests.integration.local import cluster
from tests.integration.test_tools import FUNCTIONS, SCHEMA

# Clients of earlier versions have it as an argument.
GREEDY = {"extra_body": {"temperature": 0.0}}
ASKED = [{"role": "user", "content": "weather"}]
TOOLS = [
    {"name": one["function"]["name"], "input_schema": SCHEMA, "strict": True} for one in FUNCTIONS
]


@pytest.fixture
async def clients(config):
    async with cluster(config) as local:
        url = f"http://{local.router.http_address}"
        given = {"api_key": "none", "max_retries": 0}
        async with (
            anthropic.AsyncAnthropic(base_url=url, **given) as messages,
            openai.AsyncOpenAI(base_url=f"{url}/v1", **given) as chats,
        ):
            model = (await chats.models.list()).data[0].id
            yield messages.messages, chats.chat.completions, model


def shown(message):
    return [block.to_dict() for block in message.content], message.stop_reason, message.usage


async def test_a_message_is_the_answer_of_the_chat(clients):
    messages, chats, model = clients
    asked = {"model": model, "max_tokens": 24}
    turns = [{"role": "system", "content": "be brief"}, *ASKED]
    chat = await chats.create(messages=turns, **asked, temperature=0.0)
    given = asked | GREEDY | {"messages": ASKED, "system": "be brief"}
    message = await messages.create(**given)
    assert message.content[0].text == chat.choices[0].message.content
    assert message.stop_reason == "max_tokens" and message.model == model
    usage = message.usage
    assert usage.output_tokens == chat.usage.completion_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    counted = await messages.count_tokens(model=model, messages=ASKED, system="be brief")
    assert counted.input_tokens == chat.usage.prompt_tokens
    async with messages.stream(**given) as stream:
        streamed = await stream.get_final_message()
    assert shown(streamed)[:2] == shown(message)[:2]


async def test_a_stop_sequence_of_the_answer_is_named(clients):
    messages, _, model = clients
    asked = {"model": model, "max_tokens": 24, "messages": ASKED} | GREEDY
    text = (await messages.create(**asked)).content[0].text
    stop = text[len(text) // 2 :][:3]
    message = await messages.create(**asked, stop_sequences=["never to be seen", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in message.content) == text[: text.index(stop)]


async def test_forced_calls_round_trip(clients):
    messages, _, model = clients
    asked = {"model": model, "max_tokens": 600, "tools": TOOLS}
    single = {"type": "tool", "name": "put", "disable_parallel_tool_use": True}
    for _ in range(8):
        async with messages.stream(messages=ASKED, tool_choice=single, **asked) as stream:
            message = await stream.get_final_message()
        (call,) = (block for block in message.content if block.type == "tool_use")
        if message.stop_reason == "tool_use":
            break
    assert (call.name, message.stop_reason) == ("put", "tool_use")
    assert Draft202012Validator(SCHEMA).is_valid(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [
        *ASKED,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    again = await messages.create(messages=turns, **asked | {"max_tokens": 4})
    counted = await messages.count_tokens(model=model, messages=turns, tools=TOOLS)
    usage = again.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


async def test_counts_and_messages_have_the_bounds_of_the_model(clients):
    messages, _, model = clients
    long = [{"role": "user", "content": "word " * 200_000}]
    for call in (
        messages.count_tokens(model=model, messages=long),
        messages.create(model=model, max_tokens=4, messages=long),
    ):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await call
    with pytest.raises(anthropic.NotFoundError):
        await messages.count_tokens(model="other", messages=ASKED)
