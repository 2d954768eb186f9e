"""Scoring: texts in order, a few at a time, all or none; where they go, and what is refused."""

import asyncio
import math
from dataclasses import replace

import pytest

from cluster.api import (
    ChatPrompt,
    GenerateRequest,
    Scored,
    ScorePrompt,
    TextPrompt,
    TokenPrompt,
    scoring,
)
from cluster.api.event_streams import closing
from cluster.api.scoring import score_all
from cluster.config.endpoints import EndpointConfig
from cluster.gateway.grpc_server import start
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementRequest
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.router.preprocessor import Preprocessor
from engine.errors import InvalidRequest, Overloaded, PromptTooLong
from engine.kv.prefix_digest import Chain
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores
from tandem_client import Client
from tests.cluster.gateway.http_listener import TEXT, asking
from tests.cluster.scripted_generator import CARD, ScriptedGenerator

ONE = SamplingParams(max_tokens=1)


def requests(*prompts):
    return [
        GenerateRequest(prompt, ONE, request_id=str(place)) for place, prompt in enumerate(prompts)
    ]


async def test_scores_come_in_the_order_of_the_texts():
    generator = ScriptedGenerator(pause_s=0.001)
    prompts = [ScorePrompt(TokenPrompt((1,) * length), top=1) for length in range(1, 31)]
    found = await score_all(generator, requests(*prompts))
    assert [len(one.scored.ids) for one in found] == list(range(1, 31))
    assert found[3].sum == pytest.approx(-0.6)
    assert found[0].sum == 0.0


async def test_no_more_than_a_few_are_under_way_and_one_failure_ends_all(monkeypatch):
    monkeypatch.setattr(scoring, "AT_ONCE", 3)
    most = 0

    class Watched(ScriptedGenerator):
        async def generate(self, request):
            nonlocal most
            async with closing(super().generate(request)) as events:
                async for event in events:
                    most = max(most, len(self.running))
                    yield event

    prompts = [ScorePrompt(TokenPrompt((1, 2)))] * 12
    await score_all(Watched(pause_s=0.001), requests(*prompts))
    assert most == 3
    failing = ScriptedGenerator(error=Overloaded("full", retry_after_s=1.0), after=2)
    with pytest.raises(Overloaded):
        await score_all(failing, requests(*prompts))
    assert not failing.running


async def test_cancelling_ends_all_of_them():
    generator = ScriptedGenerator(endless=True, pause_s=0.01)
    running = asyncio.create_task(score_all(generator, requests(ScorePrompt(TokenPrompt((1,))))))
    async with asyncio.timeout(5):
        while not generator.running:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not generator.running


async def test_an_answer_has_a_bound(monkeypatch):
    monkeypatch.setattr(scoring, "MAX_NUMBERS", 100)
    prompt = ScorePrompt(TokenPrompt((1,) * 10), top=4)
    assert len(await score_all(ScriptedGenerator(), requests(prompt, prompt))) == 2
    with pytest.raises(InvalidRequest, match="more than 100 log-probabilities"):
        await score_all(ScriptedGenerator(), requests(prompt, prompt, prompt))


async def test_a_token_that_cannot_come_is_a_number_over_http_too():
    """JSON has no infinity; OpenAI's servers send a number that no real token has."""
    never = Scores([-math.inf, -0.5], [7, 1], [-math.inf, -0.5])

    class Masked(ScriptedGenerator):
        async def generate(self, request):
            async for event in super().generate(request):
                yield replace(event, scores=never) if isinstance(event, Scored) else event

    body = {"prompt": [0, 1, 2], "echo": True, "max_tokens": 0, "logprobs": 1}
    async with asking(Masked()) as client:
        reply = await client.post(TEXT, json=body)
    assert reply.status_code == 200, reply.text
    listing = reply.json()["choices"][0]["logprobs"]
    assert listing["token_logprobs"] == [None, -9999.0, -0.5]
    assert listing["top_logprobs"][1] == {" eight": -9999.0, " two": -9999.0}


async def test_an_echo_has_its_ids_too():
    body = {"prompt": [0, 1, 2], "echo": True, "max_tokens": 1, "return_token_ids": True}
    async with asking(ScriptedGenerator()) as client:
        reply = await client.post(TEXT, json=body)
    assert reply.json()["choices"][0]["token_ids"] == [0, 1, 2, 0]


async def test_over_grpc_texts_keep_their_forms():
    generator = ScriptedGenerator()
    server = await start(generator)
    try:
        async with Client(f"127.0.0.1:{server.port}") as client:
            found = await client.score(["one two three", [4, 5]], top=2, request_id="mine")
            assert [one.first for one in found] == [1, 1]
            assert found[0].ids == (0, 1, 2)
            assert found[0].texts == ("one", " two", " three")
            assert found[0].scores.logprobs == pytest.approx([-0.1, -0.2])
            assert found[0].scores.top_ids == [1, 2, 2, 3]
            assert [request.request_id for request in generator.requests] == ["mine-0", "mine-1"]
            with pytest.raises(InvalidRequest, match=r"inputs\[0\]"):
                await client.score([""])
    finally:
        await server.stop(0)


class Letters:
    """A tokenizer of letters, with "ab" one token."""

    longest_token = 2
    response_template = None
    chat_templates = ""

    def special_tokens(self, texts):
        return {}

    def special_within(self, text):
        return ()

    def encode(self, text):
        return [ord(letter) % 200 for letter in text.replace("ab", "#")]


ENDPOINTS = {
    "chat": EndpointConfig(),
    "report": EndpointConfig(lane="batch"),
    "eval": EndpointConfig(lane="scoring", ttft_budget_ms=9_000),
}


async def prepared(prompt, **options):
    endpoints = options.pop("endpoints", ENDPOINTS)
    preprocessor = Preprocessor(
        CARD, Letters(), endpoints, 1, lambda tenant: Chain(tenant, "x", 16)
    )
    return await preprocessor.prepare(GenerateRequest(prompt, ONE, **options), "id", None)


@pytest.mark.parametrize(
    ("text", "more", "first"),
    [("xyz", None, 1), ("xy", "z", 2), ("xa", "bc", 1), ("a", "bc", 1), ("x", "abc", 1)],
)
async def test_text_and_continuation_are_tokenised_together(text, more, first):
    continuation = None if more is None else TextPrompt(more)
    found = await prepared(ScorePrompt(TextPrompt(text), continuation, top=2))
    assert list(found.prompt_ids) == Letters().encode(text + (more or ""))
    assert (found.scored_from, found.top, found.sampling.max_tokens) == (first, 2, 1)


async def test_scoring_has_its_lane_and_its_endpoint():
    prompt = ScorePrompt(TokenPrompt((1, 2)), TokenPrompt((3,)))
    found = await prepared(prompt)
    assert (found.lane, found.ttft_budget_s, found.scored_from) == ("scoring", 9.0, 2)
    assert (await prepared(prompt, endpoint="report")).lane == "batch"
    assert (await prepared(prompt, endpoint="chat")).lane == "scoring"
    only = await prepared(prompt, endpoints={"chat": EndpointConfig()})
    assert (only.lane, only.ttft_budget_s) == ("scoring", 0.5)


async def test_texts_that_cannot_be_scored_are_refused():
    whole = await prepared(ScorePrompt(TokenPrompt((1,) * CARD.context_tokens)))
    assert len(whole.prompt_ids) == CARD.context_tokens
    for prompt, reason in (
        (ScorePrompt(TextPrompt("a"), TokenPrompt((1,))), "both texts or both token ids"),
        (ScorePrompt(TextPrompt("a"), top=21), "at most 20"),
        (ScorePrompt(TokenPrompt((1,) * (CARD.context_tokens + 1))), "at least 4097 tokens"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            await prepared(prompt)
    with pytest.raises(PromptTooLong):
        await prepared(TokenPrompt((1,) * CARD.context_tokens))
    with pytest.raises(InvalidRequest):
        await prepared(ChatPrompt(()))


def replica_record(name, role):
    load = ReplicaLoad(blocks_total=100, block_size=16)
    return ReplicaRecord(id=name, role=role, address="127.0.0.1:1", generation=1, load=load)


def test_a_prefill_replica_takes_it_alone():
    prefill, decode = replica_record("p", "prefill"), replica_record("d", "decode")
    placement = Placement()
    ask = PlacementRequest(40, 40, digests=[b"a", b"b"], scored_from=20)
    plan = placement.plan([prefill], [], ask, 0.0)
    assert plan.pair.prefill_only and not plan.pair.local
    assert plan.pair.prefill is prefill
    shares = placement.add_load(plan, ask, 0.0)
    assert placement.load_tracker.requests(prefill) == 0
    assert placement.queue_s("p", 0.0) > 0
    for one in shares:
        one.release()
    assert placement.queue_s("p", 0.0) == 0
    # Of what is cached that before the first scored token alone is of use.
    placement.learn(prefill, [b"a", b"b"])
    assert placement.plan([prefill], [decode], ask, 0.0).pair.cached_tokens == 16
    both = replica_record("b", "both")
    plan = placement.plan([both], [both], ask, 0.0)
    assert plan.pair.local and not plan.pair.prefill_only
