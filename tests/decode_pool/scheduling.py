"""A decode scheduler for tests, requests for it, and the steps that it plans."""

from decode_pool.batch_size import BatchSize
from decode_pool.scheduler import DecodeScheduler
from engine.kv.block_pool import BlockPool
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests.paper_kv import PaperKv

BLOCK = 4
MODEL = "model"


def sequence(owner: str, prompt: int, max_tokens: int = 8, **more) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Sequence(owner, [0] * (prompt + 1), prompt, sampling, **more)


def local_sequence(owner: str, prompt: int, max_tokens: int = 8, **more) -> Sequence:
    return Sequence(owner, [0] * prompt, prompt, SamplingParams(max_tokens=max_tokens), **more)


def scheduler(
    pool: BlockPool, *, batch=8, waiting=100, chunk=6, identity=None, batching=None
) -> DecodeScheduler:
    return DecodeScheduler(
        pool,
        PromptOrder(chunk),
        BatchSize(batch, 1.0),
        block_size=BLOCK,
        max_waiting=waiting,
        chunk_tokens=chunk,
        identity=identity,
        batching=batching,
    )


def start(subject: DecodeScheduler, new: Sequence) -> None:
    subject.offer(new, 0.0)
    assert new in subject.grant()
    subject.commit(new.owner)


def step(subject: DecodeScheduler, kv: PaperKv | None = None) -> list[Sequence]:
    """One step in which every span that reaches its end gains a token; returns the finished."""
    finished = []
    passes = subject.schedule(), subject.schedule_chunk(0.0)
    for span in (*passes[0], *passes[1]):
        if kv is not None:
            kv.compute(span)
    for span in (*subject.complete(passes[0]), *subject.complete(passes[1])):
        if span.sequence.remaining == 0:
            span.sequence.tokens.append(0)
            if span.sequence.output_tokens == span.sequence.sampling.max_tokens:
                subject.remove(span.sequence.owner)
                finished.append(span.sequence)
    return finished


def run_out(subject: DecodeScheduler) -> None:
    """Step until somebody finishes."""
    assert any(step(subject) for _ in range(100))
