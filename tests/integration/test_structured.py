"""Structured answers over the whole path: valid where they end, and the same after every move."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import httpx
import pytest
from jsonschema import Draft202012Validator
from websockets.asyncio.client import connect

from bench.core.json_schemas import make_schemas
from engine.errors import InvalidRequest
from engine.types.grammar import Grammar, choice_grammar
from tests import tiny
from tests.eventually import eventually
from tests.integration.local import cluster
from tests.integration.test_resumable import Read, two_routers
from tests.integration.test_resumable import die as die_router
from tests.integration.test_resume import PROMPTS, Stream, busy, die

SCHEMAS = make_schemas(120, seed=3)
_encode = tiny.make_tokenizer().backend_tokenizer.encode
# The weights are random: without a bias few strings would end.
CLOSING = {_encode(text).ids[0]: 12.0 for text in '"}],'} | {tiny.EOS: 12.0}
RANDOM = {"temperature": 1.0, "max_tokens": 500, "logit_bias": CLOSING}
LETTERS = Grammar("regex", "[a-z ]{300,}")
GREEDY = {"temperature": 0, "max_tokens": 400, "grammar": LETTERS}
SAMPLED = GREEDY | {"temperature": 1.1, "seed": 5, "repetition_penalty": 1.2, "logprobs": 2}


@pytest.fixture
def config(config):
    return replace(config, decode=replace(config.decode, replicas=2))


@pytest.fixture(params=[0, 10_000], ids=["prefill", "local"])
def pools(request, config):
    """First tokens come from the prefill replica, or from the decode replica."""
    prefill = replace(config.prefill, local_prefill_tokens=request.param)
    return replace(config, prefill=prefill)


def schema(document):
    return Grammar("json_schema", json.dumps(document))


async def answers(local, grammar, prompt=PROMPTS[0], **options):
    """The text and the finish reason of each choice."""
    done = await local.client.complete(prompt, **RANDOM | {"grammar": grammar} | options)
    return [(choice.text, choice.finish_reason) for choice in done.choices]


async def test_answers_by_many_schemas_are_valid(pools):
    async with cluster(replace(pools, kv=replace(pools.kv, blocks=3000))) as local:
        turns = asyncio.Semaphore(16)

        async def valid(number):
            async with turns:
                document, prompt = SCHEMAS[number], PROMPTS[number % len(PROMPTS)]
                kind = (
                    {"temperature": 0},
                    {"seed": number, "top_p": 0.9},
                    {"seed": number, "n": 3, "logprobs": 2},
                    {"repetition_penalty": 1.3, "stop": ["\n", "}"], "top_k": 9, "seed": number},
                )[number % 4]
                found = await answers(local, schema(document), prompt, **kind)
                ended = [text for text, reason in found if reason == "stop"]
                for text in ended:
                    Draft202012Validator(document).validate(json.loads(text))
                return len(found), len(ended)

        first = 0 if pools.prefill.local_prefill_tokens else len(SCHEMAS) // 2
        numbers = range(first, first + len(SCHEMAS) // 2)
        counts = await asyncio.gather(*(valid(number) for number in numbers))
        choices, ended = (sum(column) for column in zip(*counts, strict=True))
        assert choices > len(numbers) and ended >= 0.8 * choices
        await local.idle()


async def test_every_kind_is_followed_with_stop_strings_where_they_may_end(pools):
    async with cluster(pools) as local:
        for _ in range(3):
            [(text, reason)] = await answers(local, Grammar("regex", "(ab|c)+"), stop=["bc"])
            assert re.fullmatch("(ab|c)*a?", text)
            assert reason == "length" or re.fullmatch("(ab|c)+", text)
        [(text, reason)] = await answers(local, Grammar("regex", "a{9}b{9}"), stop=["ab", "b"])
        assert (text, reason) == ("a" * 9 + "b" * 9, "stop")
        [(text, reason)] = await answers(local, Grammar("regex", "x{3,9}y"), stop=["y"])
        assert (text[-1], reason) == ("y", "stop")
        [(text, reason)] = await answers(local, Grammar("regex", "(z|zz|zzz)"), stop=["zz"])
        assert text in ("z", "zz", "zzz")
        found = await answers(local, choice_grammar(["oui", "non é"]), n=4, seed=1)
        assert {reason for _, reason in found} == {"stop"}
        assert {text for text, _ in found} <= {"oui", "non é"}
        [(text, _)] = await answers(local, Grammar("lark", 'root ::= "v" [0-9] [0-9]'))
        assert re.fullmatch("v[0-9]{2}", text)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_guided_stream_goes_on_when_its_decode_replica_dies(pools, options):
    async with cluster(pools) as local:
        undisturbed = Stream(local, PROMPTS[0], **options)
        await undisturbed.task
        failed_over = Stream(local, PROMPTS[0], **options)
        await failed_over.has(50)
        died = busy(local.decode)
        await die(died)
        await failed_over.task
        assert failed_over.ids == undisturbed.ids and len(undisturbed.ids) >= 300
        assert failed_over.text == undisturbed.text
        assert re.fullmatch("[a-z ]+", failed_over.text)
        assert failed_over.summary.decode_replica != died.id


async def test_a_guided_stream_goes_on_on_another_router(config):
    async with two_routers(config) as (local, other, client):
        options = SAMPLED | {"n": 2}
        whole = Read(client.generate(PROMPTS[1], **options))
        await whole.task
        read = Read(client.generate(PROMPTS[1], resumable=True, **options))
        await read.has(30)
        await die_router(local.router)
        await asyncio.wait_for(read.task, 60)
        assert read.have == whole.have and read.finish == whole.finish
        await eventually(lambda: other.router.running == 0)


async def test_guided_streams_that_are_preempted_go_on_as_they_were(config):
    config = replace(config, decode=replace(config.decode, replicas=1))
    async with cluster(config) as local:
        alone = Stream(local, PROMPTS[0], **GREEDY)
        await alone.task
    crowded = replace(
        config,
        kv=replace(config.kv, blocks=60),
        router=replace(config.router, kv_overcommit=4.0),
    )
    async with cluster(crowded) as local:
        streams = [Stream(local, PROMPTS[0], **GREEDY) for _ in range(4)]
        await asyncio.gather(*(stream.task for stream in streams))
        assert sum(stream.summary.preemptions for stream in streams) > 0
        assert [stream.ids for stream in streams] == [alone.ids] * 4


DOCUMENT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMS = {
    "openai": {"response_format": {"type": "json_schema", "json_schema": {"schema": DOCUMENT}}},
    "vllm": {"structured_outputs": {"json": DOCUMENT}},
    "guided": {"guided_json": json.dumps(DOCUMENT)},
    "own": {"grammar": {"json_schema": DOCUMENT}},
}
BODY = {"prompt": "a", "max_tokens": 300, "logit_bias": {str(k): v for k, v in CLOSING.items()}}


@pytest.mark.parametrize("form", FORMS)
async def test_http_and_websocket_take_every_form(config, form):
    async with cluster(config) as local, httpx.AsyncClient(timeout=30) as client:
        url = f"http://{local.router.http_address}/v1/completions"
        choice = (await client.post(url, json=BODY | FORMS[form])).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        Draft202012Validator(DOCUMENT).validate(json.loads(choice["text"]))
        async with connect(f"ws://{local.router.http_address}/v1/stream") as socket:
            await socket.send(json.dumps(BODY | FORMS[form] | {"id": "a", "type": "completion"}))
            text = ""
            while (message := json.loads(await socket.recv()))["type"] != "end":
                assert message["type"] != "error", message
                text += message.get("text", "")
        Draft202012Validator(DOCUMENT).validate(json.loads(text))


async def test_refusals_say_where_and_reach_no_replica(config):
    async with cluster(config) as local, httpx.AsyncClient(timeout=30) as client:
        wrong = {"type": "object", "properties": {"a": {"not": {}}}}
        with pytest.raises(InvalidRequest, match="grammar: #/properties/a: ") as caught:
            await answers(local, schema(wrong))
        assert caught.value.field == "grammar"
        for options, field in (
            ({"ignore_eos": True}, "ignore_eos"),
            ({"stop_token_ids": [5]}, "stop_token_ids"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await answers(local, schema({"type": "object"}), **options)
            assert caught.value.field == field
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": wrong}}
        url = f"http://{local.router.http_address}/v1/completions"
        answer = await client.post(url, json=BODY | {"response_format": form})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "response_format"
        assert "#/properties/a" in answer.json()["error"]["message"]
