"""Steps launched before the tokens of the step before are known: the same tokens, in any batch."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.errors import Internal
from engine.model.cuda_graphs import DecodeReplays
from engine.model.runner import whole
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.sampling.device_sampler import DeviceSampler
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.families import SERVED, save

BUCKETS = (1, 2, 4)
KINDS = (
    SamplingParams(temperature=0.0, max_tokens=9),
    SamplingParams(temperature=0.9, seed=5, max_tokens=6, logprobs=2),
    SamplingParams(temperature=0.7, top_p=0.8, seed=6, max_tokens=12),
    SamplingParams(temperature=1.0, top_k=5, seed=7, max_tokens=12, logprobs=0),
)

PENALISED = (
    SamplingParams(temperature=0.0, max_tokens=9, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=0.9, seed=5, max_tokens=6, presence_penalty=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, seed=7, max_tokens=8, logit_bias={3: 4.0}, logprobs=2),
    SamplingParams(temperature=0.7, seed=6, max_tokens=10, top_k=5),
)


def step_as_it_is(step):
    """On a CPU a recording is the function itself, over the same buffers."""
    return step


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    name, extra = SERVED["llama"]
    save(path, name, {**extra, "head_dim": 32, "num_hidden_layers": 2})
    config = ModelConfig(path=str(path), dtype="float32", operations="torch")
    loaded = Engine.load(describe(config), KvConfig(blocks=64), config, most_tokens=1)
    assert loaded.rows_ahead == 0, "a CPU records no steps"
    return loaded


@pytest.fixture
def recorded(engine):
    runner = engine.runner
    runner.replays = DecodeReplays(
        lambda batch: whole(runner.layers(batch)), engine.cache, 8, step_as_it_is, BUCKETS
    )
    with torch.inference_mode():
        for _ in runner.replays.pieces():
            pass
    yield engine
    runner.replays = None


def prompts(engine, kinds=KINDS):
    """Sequences whose prompts are computed, each with its first token."""
    made = []
    for number, sampling in enumerate(kinds):
        tokens = [(7 * i + number) % 90 for i in range(5 + 9 * number)]
        one = Sequence(f"{number}", tokens, len(tokens), sampling)
        one.blocks = list(range(8 * number, 8 * number + 8))
        outcome = engine.forward([Span(one, 0, len(tokens))])[0]
        one.computed = len(tokens)
        one.tokens.append(outcome.token)
        made.append(one)
    return made


def unfinished(sequences):
    return [one for one in sequences if one.output_tokens < one.sampling.max_tokens]


def in_turn(engine, sequences):
    """Each step after the results of the step before; the results of each sequence."""
    found = {one.owner: [] for one in sequences}
    while running := unfinished(sequences):
        spans = [Span(one, one.computed, 1) for one in running]
        for span, outcome in zip(spans, engine.forward(spans), strict=True):
            take(span, outcome, found)
    return found


def take(span, outcome, found):
    span.sequence.computed += 1
    span.sequence.tokens.append(outcome.token)
    found[span.sequence.owner].append(outcome)


def ahead(engine, sequences, late=()):
    """Each step before the results of the step before; `late` sequences join the second step."""
    found = {one.owner: [] for one in sequences}
    spans = [Span(one, one.computed, 1) for one in unfinished(sequences) if one not in late]
    launched = engine.launch(spans)
    while spans:
        rows = {span.sequence.owner: row for row, span in enumerate(spans)}
        behind = []
        for one in unfinished(sequences):
            row = rows.get(one.owner)
            if row is None:
                behind.append(Span(one, one.computed, 1))
            elif one.output_tokens + 1 < one.sampling.max_tokens:
                behind.append(Span(one, one.computed + 1, 1, row))
        next_step = engine.launch(behind) if behind else None
        for span, outcome in zip(spans, launched.read(), strict=True):
            take(span, outcome, found)
        spans, launched = behind, next_step
    return found


def test_steps_ahead_give_the_tokens_of_steps_in_turn(recorded):
    """Rows leave, so that others move up, and one row joins."""
    expected = in_turn(recorded, prompts(recorded))
    again = prompts(recorded)
    assert ahead(recorded, again) == expected
    again = prompts(recorded)
    assert ahead(recorded, again, late=(again[1],)) == expected
    assert [len(found) for found in expected.values()] == [8, 5, 11, 11]


def test_a_row_without_a_token_leaves_the_others_as_they_are(recorded):
    """Its KV has a NaN. The step behind computes it in vain, from a token that is in range."""
    expected = in_turn(recorded, prompts(recorded)[:2])
    good, bad = prompts(recorded)[:2]
    for layer in recorded.cache.layers:
        layer[:, bad.blocks[0]] = float("nan")
    first = recorded.launch([Span(bad, bad.computed, 1), Span(good, good.computed, 1)])
    second = recorded.launch(
        [Span(bad, bad.computed + 1, 1, 0), Span(good, good.computed + 1, 1, 1)]
    )
    for launched, number in ((first, 0), (second, 1)):
        fault, outcome = launched.read()
        assert isinstance(fault, Internal)
        assert outcome == expected[good.owner][number]
    recorded.clear(bad.blocks)


def test_steps_are_launched_ahead_up_to_the_first_size_without_a_recording(recorded):
    assert recorded.rows_ahead == 4

    def record(step):
        if step.args == (4,):
            raise RuntimeError("no memory")
        return step

    runner = recorded.runner
    runner.replays = DecodeReplays(
        lambda batch: whole(runner.layers(batch)), recorded.cache, 8, record, BUCKETS
    )
    with torch.inference_mode():
        for _ in runner.replays.pieces():
            pass
    assert recorded.rows_ahead == 2
    with pytest.raises(Internal, match="a step of 3 has no recording"):
        recorded.launch([Span(one, one.computed, 1) for one in prompts(recorded)[:3]])


class Recordings:
    """An improvement that records the steps of a runner."""

    stalls = True

    def __init__(self, runner, record):
        self._runner, self._record = runner, record

    def prepare(self):
        return None

    def pieces(self, cache):
        runner = self._runner
        runner.replays = DecodeReplays(
            lambda batch: whole(runner.layers(batch)), cache, 8, self._record, BUCKETS
        )
        return runner.replays.pieces()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
def test_recorded_draws_on_the_device_give_the_tokens_of_torch(engine):
    """Penalties too, as the device counts a token that the host does not know yet."""
    replayed = []

    def record(step):
        """As a CUDA graph: it writes to its first results."""
        out = step()

        def replay():
            replayed.append(step)
            return out.copy_(step())

        return replay

    expected = tokens_of(in_turn(engine, prompts(engine, PENALISED)))
    runner, cache = engine.runner, engine.cache
    sampler = DeviceSampler(BUCKETS[-1], engine.description.vocabulary, cache.device)
    recording = Recordings(runner, record)
    subject = Engine(engine.description, runner, cache, improvement=recording, sampler=sampler)
    try:
        assert subject.prepare_improvement()
        while subject.improve():
            pass
        again = prompts(subject, PENALISED)
        replayed.clear()
        assert tokens_of(ahead(subject, again, late=(again[1],))) == expected
        assert len(replayed) == 2 * 9, "a step is two recordings, the forward and the draw"
    finally:
        runner.replays = None


def tokens_of(found):
    return {owner: [outcome.token for outcome in outcomes] for owner, outcomes in found.items()}
