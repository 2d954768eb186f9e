"""What the real OpenAI client makes of the HTTP front end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    Heartbeat,
    Progress,
    Resumability,
    TextPrompt,
    TokenPrompt,
)
from engine import errors
from engine.types.sampling_params import SamplingParams
from tests.cluster.gateway.http_listener import front_end
from tests.eventually import eventually

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def client(generator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        front_end(generator) as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        ) as opened,
    ):
        yield opened


async def test_chat_whole(client, generator):
    reply = await client.chat.completions.create(model="demo", messages=HELLO, max_tokens=3)
    assert reply.object == "chat.completion"
    assert reply.model == "demo"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == "one two three"
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].logprobs is None
    assert reply.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert generator.requests[0].prompt == ChatPrompt((ChatMessage("user", "hello there"),))


async def test_chat_streamed(client):
    stream = await client.chat.completions.create(
        model="demo",
        messages=HELLO,
        stream=True,
        n=2,
        max_completion_tokens=3,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts, roles, finishes = {0: "", 1: ""}, [], []
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role == "assistant" else []
        finishes += [choice.index] if choice.finish_reason == "length" else []
    assert chunks[0].choices[0].delta.role == "assistant"
    assert texts == {0: "one two three", 1: "one two three"}
    assert roles == finishes == [0, 1]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 6
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_resumable_chat_with_comments_between(client, generator):
    generate = generator.generate

    async def with_comments(request):
        async for event in generate(request):
            yield event
            for more in (Heartbeat(), Progress(0, "decode", 1, 4), Resumability(suspended=False)):
                yield more

    generator.generate = with_comments
    for path in (client.chat.completions, client.completions):
        asks = {"messages": HELLO} if path is client.chat.completions else {"prompt": "a"}
        stream = await path.create(
            model="demo",
            stream=True,
            extra_body={"resumable": True},
            stream_options={"include_usage": True},
            **asks,
        )
        assert stream.response.headers["x-stream-id"]
        *chunks, last = [chunk async for chunk in stream]
        choices = [chunk.choices[0] for chunk in chunks]
        texts = [one.delta.content if "messages" in asks else one.text for one in choices]
        assert "".join(texts) == "one two three four"
        assert choices[-1].finish_reason == "length"
        assert last.usage.completion_tokens == 4


async def test_chat_logprobs(client, generator):
    reply = await client.chat.completions.create(
        model="demo", messages=HELLO, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["one", " two", " three", " four"]
    assert content[0].bytes == list(b"one")
    assert content[0].logprob == -0.5
    assert [(top.token, top.logprob, top.bytes) for top in content[0].top_logprobs] == [
        ("one", -0.5, list(b"one")),
        ("bytes:\\xff", -9999.0, [0xFF]),
    ]
    assert generator.requests[0].sampling.logprobs == 2
    stream = await client.chat.completions.create(
        model="demo", messages=HELLO, logprobs=True, stream=True
    )
    tokens = [
        entry.token
        async for chunk in stream
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert tokens == ["one", " two", " three", " four"]


async def test_every_parameter_arrives(client, generator):
    await client.chat.completions.create(
        model="demo",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be"}]},
            {"role": "user", "content": "hi", "name": "u"},
            {"role": "assistant", "content": "ho"},
        ],
        n=2,
        stop=["x", "y"],
        seed=11,
        max_tokens=2,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.1,
        logit_bias={"5": -10},
        user="someone",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        extra_body={
            "ignore_eos": True,
            "top_k": 3,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "stop_token_ids": [9],
            "endpoint": "report",
            "request_id": "mine",
        },
    )
    (request,) = generator.requests
    assert [message.role for message in request.prompt.messages] == ["system", "user", "assistant"]
    assert (request.n, request.endpoint, request.request_id) == (2, "report", "mine")
    assert request.sampling == SamplingParams(
        max_tokens=2,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=-0.1,
        logit_bias={5: -10.0},
        seed=11,
        stop=("x", "y"),
        stop_token_ids=(9,),
        ignore_eos=True,
    )


async def test_absent_fields_are_left_to_the_router(client, generator):
    await client.chat.completions.create(model="demo", messages=HELLO)
    assert generator.requests[0].sampling == SamplingParams()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a b", [TextPrompt("a b")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
    ],
)
async def test_completions_take_every_kind_of_prompt(client, generator, prompt, prompts):
    reply = await client.completions.create(
        model="demo", prompt=prompt, n=2, max_tokens=2, extra_body={"request_id": "r"}
    )
    assert [request.prompt for request in generator.requests] == prompts
    assert [choice.index for choice in reply.choices] == list(range(2 * len(prompts)))
    assert {choice.text for choice in reply.choices} == {"one two"}
    assert reply.object == "text_completion"
    assert reply.usage.completion_tokens == 4 * len(prompts)
    names = ["r"] if len(prompts) == 1 else [f"r-{place}" for place in range(len(prompts))]
    assert [request.request_id for request in generator.requests] == names


async def test_completions_streamed_with_several_prompts(client, generator):
    generator.pause_s = 0.001
    stream = await client.completions.create(
        model="demo", prompt=["a", "b c"], n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = dict.fromkeys(range(4), "")
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert set(texts.values()) == {"one two three four"}
    assert chunk.usage.prompt_tokens == 3
    assert chunk.usage.completion_tokens == 16


async def test_completions_logprobs(client):
    reply = await client.completions.create(model="demo", prompt="a", logprobs=1, max_tokens=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == ["one", " two"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"one": -0.5}, {" two": -0.5}]
    assert logprobs.text_offset == [0, 3]


@pytest.mark.parametrize("chat", [True, False])
async def test_token_ids_are_there_where_they_are_asked_for(client, generator, chat):
    many = client.chat.completions if chat else client.completions
    given = {"messages": HELLO} if chat else {"prompt": "hello"}
    asked = given | {"model": "demo", "n": 2, "extra_body": {"return_token_ids": True}}
    reply = await many.create(**asked)
    assert [choice.token_ids for choice in reply.choices] == [[0, 1, 2, 3]] * 2
    found = {0: [], 1: []}
    async for chunk in await many.create(**asked, stream=True):
        for choice in chunk.choices:
            found[choice.index] += getattr(choice, "token_ids", [])
    assert found == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    plain = await many.create(model="demo", **given)
    assert not hasattr(plain.choices[0], "token_ids")


async def test_models(client):
    (card,) = (await client.models.list()).data
    assert (card.id, card.object, card.created) == ("demo", "model", 1_700_000_000)
    assert (await client.models.retrieve("demo")).id == "demo"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("a/b")
    assert caught.value.code == "model_not_found"


async def test_an_unknown_model(client):
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=HELLO, stream=stream)
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"


ERRORS = [
    (errors.InvalidRequest("x", field="stop"), openai.BadRequestError),
    (errors.PromptTooLong("x", field="messages"), openai.BadRequestError),
    (errors.NotFound("x"), openai.NotFoundError),
    (errors.Overloaded("x", retry_after_s=2.0), openai.RateLimitError),
    (errors.Unavailable("x"), openai.InternalServerError),
    (errors.DeadlineExceeded("x"), openai.InternalServerError),
    (errors.Cancelled("x"), openai.APIStatusError),
    (errors.Internal("x"), openai.InternalServerError),
    (ZeroDivisionError("x"), openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(("error", "kind"), ERRORS)
async def test_errors_before_the_first_token_have_their_status(
    client, generator, error, kind, after, stream
):
    generator.error, generator.after = error, after
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(model="demo", messages=HELLO, stream=stream)
    assert caught.value.response.headers["x-request-id"]
    assert set(caught.value.body) == {"message", "type", "param", "code"}
    assert len(generator.closed) == 1


@pytest.mark.parametrize("error", [error for error, _ in ERRORS])
async def test_errors_after_the_first_token_are_raised_in_the_stream(client, generator, error):
    generator.error, generator.after = error, 3
    stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True)
    text = ""
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "one two"
    message = "internal error" if isinstance(error, ZeroDivisionError) else "x"
    assert caught.value.message == message


async def test_refusals_say_when_to_come_back(client, generator):
    generator.error = errors.Overloaded("full", retry_after_s=0.25)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="demo", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.response.headers["retry-after-ms"] == "250"


async def test_a_closed_stream_cancels(client, generator):
    generator.endless, generator.pause_s = True, 0.005
    stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await eventually(lambda: len(generator.closed) == 1)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"extra_body": {"guided_whitespace_pattern": " "}}, "guided_whitespace_pattern"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"temperature": 1000.0}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 200}, "n"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
    ],
)
async def test_bad_parameters_are_named(client, generator, given, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="demo", messages=HELLO, **given)
    assert caught.value.param == param
    assert not generator.started


async def test_unsupported_fields_with_neutral_values_are_accepted(client):
    await client.chat.completions.create(
        model="demo",
        messages=HELLO,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        extra_body={"modalities": ["text"], "functions": None, "stop": None},
    )


@pytest.mark.parametrize("n", [1, 2])
async def test_progress_is_asked_for_and_passed_over_by_a_client_that_knows_nothing_of_it(
    client, generator, n
):
    async def ask(**more):
        stream = await client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, n=n, **more
        )
        return [chunk.choices[0].model_dump() async for chunk in stream]

    told = await ask(extra_body={"progress": True})
    assert [request.progress for request in generator.requests] == [True]
    assert told == await ask()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="demo", messages=HELLO, extra_body={"progress": True}
        )
    assert caught.value.param == "progress"
