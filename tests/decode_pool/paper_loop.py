"""A decode loop over an engine on paper, in simulated time, and the requests that it serves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

from decode_pool import loop as loop_module
from decode_pool import step_clock
from decode_pool.batch_size import BatchSize
from decode_pool.itl_budget import ItlBudget
from decode_pool.job import DecodeJob
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from engine.kv.block_pool import BlockPool
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken, Sequence
from engine.types.urgency import Urgency
from tests.engine.text.test_completion import TOKENIZERS
from tests.paused_engine import PausedEngine

STEP_S, PASS_S, TOKENS_PER_S, LAYERS = 0.012, 0.006, 2500.0, 30


class PaperPass:
    """A pass through the layers, each of which takes its time."""

    def __init__(self, engine, spans):
        self.spans = spans
        self._engine = engine
        self._layer_s = (PASS_S + sum(s.count for s in spans) / TOKENS_PER_S) / LAYERS
        self._left = LAYERS

    def advance(self, for_s=None):
        self._engine.slices.append(for_s)
        end = self._engine.now + for_s
        while self._left:
            self._engine.now += self._layer_s
            self._left -= 1
            if self._left and self._engine.now + self._layer_s > end:
                return None
        return [SampledToken(7) if span.samples else None for span in self.spans]

    def cut(self):
        """Nothing: a slice on paper is over at once."""

    def halt(self):
        self._left = 0


class PaperEngine:
    """Steps that take `step_s`; notes when each owner got a token."""

    def __init__(self):
        self.now = 0.0
        self.step_s = STEP_S
        self.slices = []
        self.yields = 0
        self.tokens_s = {}

    urgency = Urgency.NONE
    shared_cores = "host"
    rows_ahead = 0

    def yield_cores(self):
        self.yields += 1

    def forward(self, spans):
        self.now += self.step_s
        for span in spans:
            self.tokens_s.setdefault(span.sequence.owner, []).append(self.now)
        return [SampledToken(7) for _ in spans]

    def begin(self, spans, stored=None):
        return PaperPass(self, spans)

    def monotonic(self):
        return self.now

    def itls(self, since_s=0.0):
        times = self.tokens_s.values()
        return [b - a for seen in times for a, b in pairwise(seen) if a >= since_s]


@asynccontextmanager
async def running(
    monkeypatch, factor, budget_s=0.06, engine=None, batching=None, blocks=10_000, mixes=False
):
    """Over an engine on paper, whose time is the loop's, unless another is given."""
    engine = engine or PaperEngine()
    if isinstance(engine, PaperEngine):
        for module in (loop_module, step_clock):
            monkeypatch.setattr(module, "time", engine)
    scheduler = DecodeScheduler(
        BlockPool(blocks),
        PromptOrder(512),
        BatchSize(64, budget_s),
        block_size=16,
        max_waiting=100,
        chunk_tokens=512,
        batching=batching,
    )
    worker = EngineWorker(engine)
    subject = DecodeLoop(scheduler, worker, 100, ItlBudget(budget_s, factor), mixes=mixes)
    task = asyncio.create_task(subject.run())
    yield subject, engine
    if isinstance(engine, PausedEngine):
        engine.go_on()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    worker.close()


class BrokenText(ChoiceText):
    """A text that no fourth token can join."""

    def push(self, token):
        if self.output_tokens == 3:
            raise RuntimeError("broke")
        return super().push(token)


def new_job(owner, prompt, max_tokens, local, stop=(), output=0, text=ChoiceText):
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=max_tokens, stop=stop, ignore_eos=True)
    completion = text(tokenizer, [1], sampling, tokenizer.eos_ids, 10_000)
    sequence = Sequence(owner, [1] * (prompt + output), prompt, sampling)
    return DecodeJob(sequence, completion, local=local)


async def stream(subject, owner, max_tokens):
    """A request whose KV came from elsewhere, to its end."""
    await finish(subject, await committed(subject, new_job(owner, 100, max_tokens, local=False)))


async def committed(subject, job):
    """The job, whose KV came from elsewhere, in the batch."""
    subject.register(job)
    job.take_first(5)
    await subject.admit(job)
    subject.commit(job)
    return job


async def prompt(subject, owner, tokens, max_tokens=2, urgency=Urgency.PROMPTS):
    """A request whose prompt is computed here, to its end."""
    job = new_job(owner, tokens, max_tokens, local=True)
    job.sequence.urgency = urgency
    subject.register(job)
    try:
        await subject.admit(job)
        await finish(subject, job)
    finally:
        subject.release(job)


async def finish(subject, job):
    job.listen(lambda due_s: job.collect())
    await asyncio.wait_for(job.drained, 20)
    subject.release(job)
