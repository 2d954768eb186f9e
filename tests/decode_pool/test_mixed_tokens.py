"""A real model on a decode loop: tokens in mixed passes are those of each request alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from engine.config import KvConfig, ModelConfig
from engine.grammar.compiler import GrammarCompiler
from engine.kv.block_pool import BlockPool
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.text.completion import ChoiceText
from engine.text.tokenizer import Tokenizer
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scoring
from engine.types.sequence import Sequence
from tests import tiny

BLOCKS, CHUNK, MOST = 80, 96, 70
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=MOST, ignore_eos=True),
    "drawn": SamplingParams(seed=5, max_tokens=MOST, top_p=0.9, ignore_eos=True, logprobs=2),
    "penalised": SamplingParams(
        temperature=0.0,
        max_tokens=MOST,
        ignore_eos=True,
        presence_penalty=0.7,
        logit_bias={65: 3.0},
    ),
    "grammar": SamplingParams(seed=8, max_tokens=MOST, grammar=Grammar("regex", "[a-c]{5,60}")),
    "stop": SamplingParams(seed=9, max_tokens=MOST, ignore_eos=True, stop=("e", "a")),
}


@dataclass
class ServedModel:
    engine: Engine
    tokenizer: Tokenizer
    grammars: GrammarCompiler


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make(folder)
    config = ModelConfig(path=str(folder), dtype="float32", operations="torch")
    described = describe(config)
    engine = Engine.load(described, KvConfig(blocks=BLOCKS), config, most_tokens=1)
    tokenizer = Tokenizer.load(str(folder))
    grammars = GrammarCompiler(tokenizer.serialized(), described.vocabulary, (tiny.EOS,))
    return ServedModel(engine, tokenizer, grammars)


@asynccontextmanager
async def serving(model, *, mixes, blocks=BLOCKS):
    scheduler = DecodeScheduler(
        BlockPool(blocks),
        PromptOrder(CHUNK),
        BatchSize(32, 10.0),
        block_size=16,
        max_waiting=100,
        chunk_tokens=CHUNK,
        identity="model",
    )
    worker = EngineWorker(model.engine)
    loop = DecodeLoop(scheduler, worker, 100, ItlBudget(10.0, None), mixes=mixes)
    task = asyncio.create_task(loop.run())
    yield loop
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    worker.close()


def request(model, kind, number, length, choice=0, *, scored=False):
    tokens = [(7 * place + 3 * number) % 90 + 33 for place in range(length)]
    sampling = SAMPLING[kind]
    made = Sequence(f"{kind}{number}.{choice}", tokens, length, sampling, choice)
    if sampling.grammar is not None:
        made.matcher = model.grammars.compile(sampling.grammar).matcher()
    if scored:
        made.scoring = Scoring(length - 30, 1, length)
    text = ChoiceText(model.tokenizer, tokens, sampling, (tiny.EOS,), 2048, made.matcher)
    return DecodeJob(made, text, local=True)


def requests(model):
    """One of each kind, with prompts of up to five chunks, and three choices of one prompt."""
    made = [
        request(model, kind, number, 30 + 90 * number, scored=kind == "drawn")
        for number, kind in enumerate(SAMPLING)
    ]
    return made + [request(model, "drawn", 7, 200, choice) for choice in range(3)]


async def answer(loop, job):
    """The tokens and the text of a request, to its end."""
    tokens, texts = [], []

    def collect(due_s):
        emission = job.collect()
        if emission is not None:
            tokens.extend(token.token for token in emission.tokens)
            texts.append(emission.text)

    loop.register(job)
    try:
        await loop.admit(job)
        job.listen(collect)
        await asyncio.wait_for(job.drained, 60)
    finally:
        loop.release(job)
        await loop.vacated(job)
    scoring = job.sequence.scoring
    return tokens, "".join(texts), scoring


@pytest.fixture
def mixed(model, monkeypatch):
    """The passes in which streams rode, each as the output tokens of its sequences so far."""
    seen, forward = [], model.engine.forward

    def noting(spans):
        outputs = [span.sequence.output_tokens for span in spans]
        if 0 in outputs and any(outputs):
            seen.append(outputs)
        return forward(spans)

    monkeypatch.setattr(model.engine, "forward", noting)
    return seen


async def alone(model):
    """Each answer alone on an engine."""
    async with serving(model, mixes=False) as loop:
        return [await answer(loop, job) for job in requests(model)]


def assert_alike(found, expected):
    for (tokens, text, scoring), (own_tokens, own_text, own_scoring) in zip(
        found, expected, strict=True
    ):
        assert (tokens, text) == (own_tokens, own_text)
        if own_scoring is not None:
            assert scoring.scores().logprobs == pytest.approx(
                own_scoring.scores().logprobs, abs=1e-4
            )


@pytest.mark.parametrize("blocks", [BLOCKS, 40])
async def test_every_kind_of_request_gets_its_own_tokens(model, mixed, blocks):
    """With few blocks streams are preempted, and computed again."""
    expected = await alone(model)
    assert not mixed
    async with serving(model, mixes=True, blocks=blocks) as loop:
        jobs = [request(model, "greedy", 20, 20), *requests(model)]
        first = asyncio.create_task(answer(loop, jobs[0]))
        while not jobs[0].sequence.output_tokens:
            await asyncio.sleep(0)
        found = await asyncio.gather(*(answer(loop, job) for job in jobs[1:]))
        await first
        assert loop.blocks_promised == 0
    assert len(mixed) > 5
    assert blocks == BLOCKS or sum(job.preemptions for job in jobs) > 0
    assert_alike(found, expected)


async def test_cancels_in_mixed_passes_change_no_other_answer(model, mixed):
    expected = await alone(model)
    async with serving(model, mixes=True) as loop:
        gone = [request(model, "greedy", 30 + n, 150 + 20 * n) for n in range(4)]
        leaving = [asyncio.create_task(answer(loop, job)) for job in gone[:2]]
        staying = [asyncio.create_task(answer(loop, job)) for job in requests(model)]
        leaving += [asyncio.create_task(answer(loop, job)) for job in gone[2:]]
        for number, task in enumerate(leaving):
            while len(mixed) <= number:
                await asyncio.sleep(0)
            task.cancel()
        found = await asyncio.gather(*staying)
        await asyncio.gather(*leaving, return_exceptions=True)
        assert loop.blocks_promised == 0
    assert_alike(found, expected)
