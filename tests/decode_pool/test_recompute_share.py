"""A stream that stands still goes on, whatever the budget and the speed, and whoever is beside."""

from __future__ import annotations

import asyncio
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_pool.job import DecodeJob
from decode_pool.recompute_share import RecomputeShare
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from engine.types.urgency import Urgency
from tests.decode_pool.paper_loop import LAYERS, PaperEngine, PaperPass, prompt, running, stream
from tests.engine.text.test_completion import TOKENIZERS
from tests.paused_engine import PausedEngine

CHUNK = 512


@given(st.floats(1e-3, 1.0), st.floats(1e-4, 3.0), st.integers(1, 200))
def test_the_slices_take_as_long_as_the_steps_but_for_a_layer(step_s, layer_s, steps):
    share, sliced_s = RecomputeShare(), 0.0
    for _ in range(steps):
        share.stepped(step_s)
        took_s = max(1, int(share.slice_s / layer_s)) * layer_s
        share.computed(took_s)
        sliced_s += took_s
        assert took_s <= max(layer_s, step_s + layer_s)
    assert sliced_s >= steps * step_s - layer_s - 1e-6
    share.idle()
    assert share.slice_s == 0


class AnyEngine(PaperEngine):
    """A pass takes `pass_s` and each of its tokens `token_s`; tells of each step and result."""

    def __init__(self, step_s, pass_s, token_s):
        super().__init__()
        self.step_s, self.pass_s, self.token_s = step_s, pass_s, token_s
        self.next_s = {}
        self.stepped = lambda: None

    shared_cores = ""

    def forward(self, spans):
        results = super().forward(spans)
        self.stepped()
        return results

    def begin(self, spans, stored=None):
        return AnyPass(self, spans)

    def next_of(self, owner):
        """When the owner got its first token: from a pass, or from a step after it."""
        return min(self.next_s.get(owner, self.now), *self.tokens_s[owner])

    def passes_s(self, tokens):
        """Of so many tokens, alone."""
        return ceil(tokens / CHUNK) * (self.pass_s + CHUNK * self.token_s)


class AnyPass(PaperPass):
    """Notes when an owner got a token from a pass."""

    def __init__(self, engine, spans):
        super().__init__(engine, spans)
        tokens = sum(span.count for span in spans)
        self._layer_s = (engine.pass_s + tokens * engine.token_s) / LAYERS

    def advance(self, for_s=None):
        results = super().advance(for_s)
        for span, result in zip(self.spans, results or (), strict=bool(results)):
            if result is not None:
                self._engine.next_s.setdefault(span.sequence.owner, self._engine.now)
        return results


def moved_job(owner, tokens):
    """A request that another replica served as far as that."""
    tokenizer = TOKENIZERS["byte_level"]
    sampling = SamplingParams(max_tokens=tokens + 3, ignore_eos=True)
    completion = ChoiceText(tokenizer, [1], sampling, tokenizer.eos_ids, 10_000)
    return DecodeJob(Sequence(owner, [1] * tokens, 1, sampling), completion, local=True)


async def moved(subject, owner, tokens):
    """A request that failed over, to its end."""
    job = moved_job(owner, tokens)
    subject.register(job)
    await subject.admit(job)
    job.listen(lambda due_s: job.collect())
    await job.drained
    subject.release(job)


async def pauses(engine, budget_s, factor, lengths, *, streams, joining, prompts):
    """The seconds until each moved stream has its next token, and since when they are counted."""
    with pytest.MonkeyPatch.context() as patch:
        async with running(patch, factor, budget_s, engine) as (subject, _):
            loop, beside = asyncio.get_running_loop(), []

            def begin(work):
                beside.append(loop.create_task(work))

            for number in range(streams):
                begin(stream(subject, f"s{number}", 9000))
            for number in range(prompts):
                begin(prompt(subject, f"p{number}", 3000, urgency=Urgency.URGENT))
            while streams and len(engine.tokens_s.get("s0", ())) < 20:
                await asyncio.sleep(0)
            if joining:

                def join():
                    loop.call_soon_threadsafe(begin, stream(subject, f"j{len(beside)}", 2))

                engine.stepped = join
            began_s = engine.now
            going = [
                loop.create_task(moved(subject, f"m{number}", tokens))
                for number, tokens in enumerate(lengths)
            ]
            async with asyncio.timeout(60):
                await asyncio.gather(*going)
            assert not any(task.done() for task in beside[:streams])
            engine.stepped = lambda: None
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            return [engine.next_of(f"m{number}") - began_s for number in range(len(lengths))]


@settings(deadline=None, max_examples=40)
@given(
    step_s=st.floats(1e-3, 0.5),
    pass_s=st.floats(1e-3, 1.0),
    token_s=st.floats(1e-5, 1e-2),
    budget_s=st.floats(1e-4, 0.2),
    factor=st.none() | st.floats(1.0, 3.0),
    lengths=st.lists(st.integers(2, 1500), min_size=1, max_size=5),
    streams=st.integers(1, 20),
    joining=st.booleans(),
    prompts=st.integers(0, 4),
)
def test_a_moved_stream_waits_for_twice_its_recomputing_whatever_others_do(
    step_s, pass_s, token_s, budget_s, factor, lengths, streams, joining, prompts
):
    engine = AnyEngine(step_s, pass_s, token_s)
    found = asyncio.run(
        pauses(
            engine,
            budget_s,
            factor,
            lengths,
            streams=streams,
            joining=joining,
            prompts=prompts,
        )
    )
    layer_s = engine.passes_s(CHUNK) / LAYERS
    before = 0
    for tokens, pause_s in sorted(zip(lengths, found, strict=True)):
        before += tokens
        # The streams of one loss come within a pass of the first of them.
        alone_s = engine.passes_s(before) + engine.passes_s(CHUNK)
        assert pause_s <= 2 * alone_s + 4 * step_s + 3 * layer_s + budget_s


async def test_what_comes_ends_a_slice_of_prompts_but_not_of_a_moved_stream(
    monkeypatch,
):
    async with running(monkeypatch, 2.0, engine=PausedEngine()) as (subject, engine):
        computed = asyncio.create_task(prompt(subject, "p", 300))
        await engine.pause_in_slice(1)
        again = asyncio.create_task(moved(subject, "m", 300))
        while not engine.cuts:
            await asyncio.sleep(0)
        await engine.pause_in_slice(3)
        assert engine.slices[2:] == [["m"], ["m"]]
        joined = asyncio.create_task(stream(subject, "s", 3))
        for _ in range(5):
            await asyncio.sleep(0)
        engine.go_on()
        await asyncio.gather(computed, again, joined)
        assert engine.cuts == 1
