"""Scoring through a whole cluster: exact, in one pool and in two, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
import torch

from cluster.config.endpoints import EndpointConfig
from engine.errors import Cancelled, InvalidRequest, NotFound, PromptTooLong
from tests import tiny
from tests.eventually import eventually
from tests.integration.local import LocalCluster, cluster, slow_steps

CHUNK = 64
TOLERANCE = 2e-4


def table(model, ids):
    """[tokens, vocabulary]: transformers' log-probabilities behind each token."""
    with torch.inference_mode():
        return (
            model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
        )


def logprobs_of(model, ids, first):
    found = table(model, ids)
    return [found[index - 1, ids[index]].item() for index in range(first, len(ids))]


def scoring(config, prefill, **lanes):
    return replace(
        config,
        prefill=replace(config.prefill, replicas=prefill, chunk_tokens=CHUNK),
        endpoints={
            **config.endpoints,
            "score": EndpointConfig(lane="scoring", ttft_budget_ms=60_000),
            **lanes,
        },
    )


@pytest.mark.parametrize("prefill", [0, 1], ids=["one pool", "two pools"])
async def test_texts_and_continuations_are_scored_as_transformers_does(config, model, prefill):
    rng = random.Random(3)
    shared = [rng.randrange(256) for _ in range(100)]
    long = [rng.randrange(256) for _ in range(300)]
    async with cluster(scoring(config, prefill)) as local:
        lanes = _lanes(local)
        alone = await local.client.score([long, "some text", [7]], top=2)
        assert list(alone[0].ids) == long
        assert alone[0].scores.logprobs == pytest.approx(logprobs_of(model, long, 1), abs=TOLERANCE)
        best = table(model, long)[:-1].topk(2)
        assert alone[0].scores.top_logprobs == pytest.approx(
            best.values.flatten().tolist(), abs=TOLERANCE
        )
        assert list(alone[1].texts) == list("some text")
        assert alone[1].sum == pytest.approx(sum(alone[1].scores.logprobs))
        assert (alone[2].scores.logprobs, alone[2].sum) == ([], 0.0)
        for _ in range(2):
            answers = [[1, 2, 3], [9] * 20]
            pairs = await local.client.score([(shared, answer) for answer in answers])
            for one, answer in zip(pairs, answers, strict=True):
                assert one.first == len(shared)
                expected = logprobs_of(model, shared + answer, len(shared))
                assert one.scores.logprobs == pytest.approx(expected, abs=TOLERANCE)
        # All but the block of the token before the first scored one.
        assert all(one.cached_tokens == 96 for one in pairs)
        assert lanes == {"scoring"}
        await local.idle()
        if prefill:
            assert not any(one.parts.prefill.sender.bytes_moved for one in local.replicas)


def _lanes(local: LocalCluster) -> set[str]:
    """The lanes of everything that is computed; in two pools decode replicas compute nothing."""
    lanes: set[str] = set()
    for replica in local.replicas:
        engine = replica.parts.model.engine

        def begin(spans, stored=None, begin=engine.begin, idle=replica.role == "decode"):
            assert not idle
            lanes.update(span.sequence.lane for span in spans)
            return begin(spans, stored)

        engine.begin = begin
    return lanes


async def test_prefill_alone_is_enough(config, model):
    """No decode replica lives; generating is refused, scoring is not."""
    async with cluster(scoring(config, 1)) as local:
        await local.decode[0].drain(1)
        await eventually(lambda: "decode" in local.router.router.missing())
        (one,) = await local.client.score(["text"])
        assert one.scores.logprobs == pytest.approx(
            logprobs_of(model, list(one.ids), 1), abs=TOLERANCE
        )


async def test_a_text_may_fill_the_context_and_no_more(config):
    async with cluster(scoring(config, 1)) as local:
        (one,) = await local.client.score([[5] * 2048])
        assert len(one.scores.logprobs) == 2047
        with pytest.raises(PromptTooLong):
            await local.client.score([[5] * 2049])
        with pytest.raises(NotFound):
            await local.client.score(["a"], endpoint="nothing")
        with pytest.raises(InvalidRequest, match="at most 20"):
            await local.client.score(["a"], top=21)
        with pytest.raises(InvalidRequest, match="1 to 128 texts"):
            await local.client.score([])
        with pytest.raises(InvalidRequest, match="both"):
            await local.client.score([("a", [1])])


async def test_cancelled_and_abandoned_texts_keep_no_blocks(config):
    async with cluster(scoring(config, 1)) as local:
        texts = [[number] * 1500 for number in range(20)]
        running = asyncio.create_task(local.client.score(texts))
        await eventually(lambda: local.prefill[0].load().used)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await local.idle()
        slow_steps(local.prefill, 0.5)  # else the text may be scored before its cancel comes
        running = asyncio.create_task(local.client.score([texts[0]], request_id="one"))
        while not running.done() and not await local.client.cancel("one"):
            await asyncio.sleep(0)
        with pytest.raises(Cancelled):
            await running
        await local.idle()


async def test_echo_is_what_an_evaluation_harness_expects(config, model):
    async with cluster(scoring(config, 1)) as local:
        prompts = ["The first text.", "Another"]
        body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        status, whole = await _post(local, body)
        assert status == 200
        for choice, prompt in zip(whole["choices"], prompts, strict=True):
            listing = choice["logprobs"]
            ids = list(prompt.encode())
            assert choice["text"].startswith(prompt)
            assert listing["tokens"][: len(ids)] == list(prompt)
            assert listing["text_offset"][: len(ids)] == list(range(len(ids)))
            assert listing["token_logprobs"][0] is listing["top_logprobs"][0] is None
            ids_of = [_id(model, text) for text in prompt]
            assert listing["token_logprobs"][1:-1] == pytest.approx(
                logprobs_of(model, ids_of, 1), abs=TOLERANCE
            )
            for own, top in zip(
                listing["token_logprobs"][1:], listing["top_logprobs"][1:], strict=True
            ):
                assert own <= max(top.values()) + TOLERANCE
        tokens = sum(map(len, prompts))
        assert whole["usage"]["prompt_tokens"] == tokens
        assert whole["usage"]["completion_tokens"] == 2
        status, bare = await _post(local, body | {"max_tokens": 0})
        assert [choice["text"] for choice in bare["choices"]] == prompts
        assert bare["choices"][0]["finish_reason"] == "length"
        assert bare["usage"]["completion_tokens"] == 0
        listed = whole["choices"][0]["logprobs"]["token_logprobs"][:-1]
        assert bare["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
            listed[1:], abs=TOLERANCE
        )
        for wrong, field in (({"max_tokens": 5}, "max_tokens"), ({"stream": True}, "stream")):
            status, refusal = await _post(local, body | wrong)
            assert (status, refusal["error"]["param"]) == (400, field)


def _id(model, text):
    """The token id of one ASCII character in the tiny model's tokenizer."""
    return tiny.make_tokenizer().encode(text, add_special_tokens=False)[0]


async def _post(local, body):
    def post():
        request = urllib.request.Request(
            f"http://{local.router.http_address}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return await asyncio.to_thread(post)
