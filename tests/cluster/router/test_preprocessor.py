"""The preprocessor: complete requests come out, wrong ones are refused by field."""

import asyncio
import math
import threading
from dataclasses import replace
from functools import cached_property

import pytest

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    ModelCard,
    TextPrompt,
    TokenPrompt,
    limits,
)
from cluster.api.tokenizer_threads import TokenizerThreads
from cluster.config.endpoints import EndpointConfig
from cluster.router import preprocessor as module
from cluster.router.preprocessor import Preprocessor
from engine.errors import InvalidRequest, NotFound, PromptTooLong
from engine.kv.prefix_digest import Chain
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams
from protos.shared_prompt import SharedPrompt
from tests import tiny

CONTEXT = 100
CARD = ModelCard("tiny", "LlamaForCausalLM", "float32", CONTEXT, 320, ("chat", "report"), 0)
ENDPOINTS = {
    "chat": EndpointConfig(ttft_budget_ms=500, max_output_tokens=20),
    "report": EndpointConfig(max_output_tokens=90),
}


@pytest.fixture(scope="module")
def preprocessor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make(folder)
    return Preprocessor(CARD, Tokenizer.load(str(folder)), ENDPOINTS, threads=2)


def request(prompt="hi", sampling=None, **rest):
    kinds = {str: TextPrompt, tuple: TokenPrompt, list: lambda m: ChatPrompt(tuple(m))}
    return GenerateRequest(kinds[type(prompt)](prompt), sampling or SamplingParams(), **rest)


async def test_defaults_are_filled_in(preprocessor):
    prepared = await preprocessor.prepare(request("hello"), "id", None)
    assert prepared.request_id
    assert prepared.sampling.seed is not None
    assert prepared.sampling.max_tokens == 20
    assert prepared.ttft_budget_s == 0.5
    assert len(prepared.prompt_ids) == 5


async def test_max_tokens_is_within_endpoint_context_and_pool(preprocessor):
    async def most(max_tokens, prompt_tokens, endpoint, capacity=None):
        sampling = SamplingParams(max_tokens=max_tokens)
        wanted = request(tuple([1] * prompt_tokens), sampling, endpoint=endpoint)
        return (await preprocessor.prepare(wanted, "id", capacity)).sampling.max_tokens

    assert await most(50, 10, "chat") == 20
    assert await most(100, 60, "report") == 40
    assert await most(None, 10, "report", capacity=32) == 23
    assert await most(50, 10, "report", capacity=32) == 23
    assert await most(2**30, 10, "chat") == 20


async def test_a_clients_top_k_of_minus_one_is_off(preprocessor):
    prepared = await preprocessor.prepare(request("x", SamplingParams(top_k=-1)), "id", None)
    assert prepared.sampling.top_k == 0


@pytest.mark.parametrize(
    ("wrong", "error", "field", "text"),
    [
        (request(""), InvalidRequest, "prompt", "empty"),
        (request(()), InvalidRequest, "prompt", "empty"),
        (request([]), InvalidRequest, "messages", "empty"),
        (request([ChatMessage("robot", "x")]), InvalidRequest, "messages", "unknown role 'robot'"),
        (
            request(tuple([1] * 100)),
            PromptTooLong,
            "prompt",
            "^This model's maximum context length is 100 tokens\\. "
            "However, the prompt is too long: it has at least 100 tokens, "
            "and the answer needs one more",
        ),
        (request("word " * 2000), PromptTooLong, "prompt", "100 tokens. .* least [0-9]+ tokens"),
        (request((320,)), InvalidRequest, "prompt", r"token id 320 .*0 to 319"),
        (request((-1,)), InvalidRequest, "prompt", "token id -1"),
        (request("bad \ud800"), InvalidRequest, "prompt", "."),
        (request("x", n=0), InvalidRequest, "n", "between 1 and 128"),
        (request("x", tenant=""), InvalidRequest, "tenant", "1 to 64 characters"),
        (request("x", tenant="a b"), InvalidRequest, "tenant", "letters, digits"),
        (request("x", tenant="t" * 65), InvalidRequest, "tenant", "1 to 64 characters"),
        (request("x", model="gpt"), NotFound, "model", "'tiny' is"),
        (request("x", endpoint="web"), NotFound, "endpoint", "use one of: chat, report"),
        (request("x", SamplingParams(temperature=math.nan)), InvalidRequest, "temperature", "nan"),
        (request("x", SamplingParams(top_p=-0.1)), InvalidRequest, "top_p", "at least 0"),
        (request("x", SamplingParams(top_k=-2)), InvalidRequest, "top_k", "at least -1"),
        (request("x", SamplingParams(stop=("",))), InvalidRequest, "stop", "characters"),
        (request("x", SamplingParams(logit_bias={999: 1.0})), InvalidRequest, "logit_bias", "999"),
    ],
)
async def test_a_wrong_field_is_named(preprocessor, wrong, error, field, text):
    with pytest.raises(error, match=text) as refusal:
        await preprocessor.prepare(wrong, "id", None)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=10**400),
        SamplingParams(top_k=10**400),
        SamplingParams(seed=10**400),
        SamplingParams(temperature=10**400),
        SamplingParams(logprobs=10**5000),
        SamplingParams(stop_token_ids=(10**400,)),
        SamplingParams(stop_token_ids=(1,) * 1025),
        SamplingParams(logit_bias={10**400: 1.0}),
        SamplingParams(logit_bias={1: 10**400}),
    ],
)
async def test_no_number_is_too_large_to_be_refused(preprocessor, sampling):
    with pytest.raises(InvalidRequest) as refusal:
        await preprocessor.prepare(request("x", sampling), "id", None)
    assert getattr(sampling, refusal.value.field) != getattr(SamplingParams(), refusal.value.field)
    assert len(refusal.value.message) < 200


async def test_choices_together_send_a_bounded_number_of_tokens(preprocessor, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CHOICE_TOKENS", 100)
    await preprocessor.prepare(request((1,) * 20, n=5), "id", None)
    await preprocessor.prepare(request((1,) * 90), "id", None)
    with pytest.raises(InvalidRequest, match="at most 4 choices") as refusal:
        await preprocessor.prepare(request((1,) * 21, n=5), "id", None)
    assert refusal.value.field == "n"


async def test_an_answer_has_a_bounded_number_of_logprobs(preprocessor, monkeypatch):
    monkeypatch.setattr(limits, "MAX_NUMBERS", 100)

    async def most(max_tokens, n):
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=4)
        return (await preprocessor.prepare(request("x", sampling, n=n), "id", None)).sampling

    assert (await most(20, 1)).max_tokens == 20
    assert (await most(None, 2)).max_tokens == 10
    with pytest.raises(InvalidRequest, match="max_tokens can be at most 10") as refusal:
        await most(20, 2)
    assert refusal.value.field == "logprobs"


async def test_long_prompts_are_digested_on_a_thread(preprocessor, monkeypatch):
    monkeypatch.setattr(module, "FEW_TOKENS", 10)
    threads = []

    class Recording(Chain):
        def follow(self, tokens, count):
            threads.append(threading.current_thread())
            super().follow(tokens, count)

    monkeypatch.setattr(preprocessor, "_new_chain", lambda tenant: Recording(tenant, "", 4))
    for tokens in (10, 11):
        prepared = await preprocessor.prepare(request((1,) * tokens), "id", None)
        assert prepared.digests() == _digests(tokens)
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


async def test_long_prompts_are_encoded_on_a_thread_and_once(preprocessor, monkeypatch):
    monkeypatch.setattr(module, "FEW_TOKENS", 10)
    threads = []

    class Recording(SharedPrompt):
        @cached_property
        def encoded(self):
            threads.append(threading.current_thread())
            return super().encoded

    monkeypatch.setattr(module, "SharedPrompt", Recording)
    for tokens in (10, 11):
        prepared = await preprocessor.prepare(request((1,) * tokens), "id", None)
        copy = replace(prepared, ttft_budget_s=1.0)
        assert copy.prompt.encoded is prepared.prompt.encoded
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


async def test_the_digests_of_an_output_copy_no_prompt(preprocessor, monkeypatch):
    monkeypatch.setattr(preprocessor, "_new_chain", lambda tenant: Chain(tenant, "", 4))
    prepared = await preprocessor.prepare(request((1,) * 14), "id", None)
    given, extended = [], Chain.extended
    monkeypatch.setattr(
        Chain, "extended", lambda chain, tokens: given.append(tokens) or extended(chain, tokens)
    )
    assert prepared.digests((1, 1)) == _digests(16)
    assert given == [[1, 1, 1, 1]]
    assert prepared.digests() == _digests(14)


def _digests(tokens):
    chain = Chain("default", "", 4)
    chain.follow((1,) * tokens, tokens)
    return chain.digests


async def test_a_short_text_waits_for_no_long_one():
    threads, go = TokenizerThreads(1), threading.Event()
    long = [asyncio.create_task(threads.run(2**22, lambda: go.wait(60))) for _ in range(10)]
    await asyncio.sleep(0)
    assert await threads.run(100, lambda: "tokens") == "tokens"
    go.set()
    assert all(await asyncio.gather(*long))
