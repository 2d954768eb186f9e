"""Passes cut between layers, and operations changed in the middle of one."""

from __future__ import annotations

import pytest
import torch

from engine import kernels
from engine.config import KvConfig, ModelConfig
from engine.cpu.core_sharing import CoreSharing
from engine.kv.cache import KvCache
from engine.model.ops_torch import TorchOps
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from engine.types.urgency import Urgency
from tests.engine.families import SERVED, save
from tests.paper_marks import LaunchingDevice

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def load(folder, **options):
    config = ModelConfig(path=str(folder), **options)
    return Engine.load(describe(config), KvConfig(blocks=32), config, most_tokens=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    name, extra = SERVED["llama"]
    save(path, name, {**extra, "head_dim": 32, "num_hidden_layers": 4})
    return path


def sequence(owner, length, blocks):
    tokens = [(7 * i + len(owner)) % 90 for i in range(length)]
    made = Sequence(owner, tokens, length, GREEDY)
    made.blocks = list(blocks)
    return made


def generate(engine, made, count, first=None):
    """Greedy tokens after the prompt."""
    out = []
    for _ in range(count):
        outcome = first or engine.forward([Span(made, made.computed, made.remaining)])[0]
        first = None
        made.computed = len(made.tokens)
        made.tokens.append(outcome.token)
        out.append(outcome.token)
    return out


def test_the_head_is_computed_by_the_threads_that_there_are_by_then(folder, monkeypatch):
    engine, behind = load(folder, dtype="float32"), []
    run = engine.begin([Span(sequence("long", 20, range(2)), 0, 20)])
    monkeypatch.setattr(CoreSharing, "adapt", lambda cores: behind.append(run.layers_done))
    assert run.advance() is not None
    assert behind[-1] == len(engine.cache.layers)


def in_slices(run, between=lambda: None):
    while (results := run.advance(0.0)) is None:
        between()
    return results


def test_slices_of_a_pass_with_steps_of_others_between_change_nothing(folder):
    engine = load(folder, dtype="float32")
    expected = generate(engine, sequence("long", 100, range(7)), 4)
    other = generate(engine, sequence("other", 20, range(10, 13)), 6)

    cut, beside = sequence("long", 100, range(20, 27)), sequence("other", 20, range(28, 31))
    got = []
    run = engine.begin([Span(cut, 0, 100)])
    first = in_slices(run, lambda: got.extend(generate(engine, beside, 1)))[0]
    assert len(got) == 3  # one between each two of four layers
    assert generate(engine, cut, 4, first) == expected
    assert got + generate(engine, beside, 3) == other


@pytest.mark.parametrize("forward", ["compact", "transformers"])
def test_a_faulty_block_reaches_no_other_owner(folder, forward):
    """A short sequence beside a long one: its row of the table is padded."""
    engine = load(folder, dtype="float32", forward=forward)
    for layer in engine.cache.layers:
        layer[:, 0] = float("nan")
    short, long = sequence("a", 5, [1]), sequence("b", 60, range(2, 6))
    for made in (short, long):
        engine.forward([Span(made, 0, len(made.tokens) - 1)])
    spans = [Span(made, len(made.tokens) - 1, 1) for made in (short, long)]
    assert all(hasattr(outcome, "token") for outcome in engine.forward(spans))


def test_a_module_runs_in_one_slice(folder):
    engine = load(folder, dtype="float32", forward="transformers")
    made = sequence("a", 30, range(2))
    assert engine.begin([Span(made, 0, 30)]).advance(0.0) is not None


def test_a_slice_that_is_cut_ends_with_its_layer_and_the_pass_goes_on(folder):
    engine = load(folder, dtype="float32")
    run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)])
    run.cut()
    assert run.advance(1000.0) is None
    assert run.layers_done == 1
    assert run.advance(1000.0) is not None


def test_where_kernels_run_on_their_own_a_slice_ends_when_they_have(folder, monkeypatch):
    """As on a GPU: what has passed a mark is known, and the rest once the slice has ended."""
    engine = load(folder, dtype="float32")
    device = LaunchingDevice()
    monkeypatch.setattr(KvCache, "launches", True)
    monkeypatch.setattr(KvCache, "mark", lambda cache: device.mark())
    stored, waited = [], []
    run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)], lambda: stored.append(True))
    monkeypatch.setattr(KvCache, "synchronize", lambda cache: waited.append(run.layers_done))
    assert run.advance(0.0) is None
    assert (run.layers_done, waited) == (1, [1])
    assert run.advance() is not None
    assert waited == [1, 1]
    assert run.layers_done == len(engine.cache.layers)
    assert not stored


def test_a_halted_pass_ends_without_results_and_changes_no_other(folder):
    engine = load(folder, dtype="float32")
    expected = generate(engine, sequence("other", 20, range(10, 13)), 6)
    beside = sequence("other", 20, range(28, 31))
    got = generate(engine, beside, 3)
    for advanced in (False, True):
        run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)])
        assert not advanced or run.advance(0.0) is None
        run.halt()
        assert run.advance() is None
        assert run.layers_done == advanced
    assert got + generate(engine, beside, 3) == expected


def test_a_runner_sees_that_its_pass_was_halted(folder, monkeypatch):
    engine = load(folder, dtype="float32")
    batches, layers = [], engine.runner.layers
    monkeypatch.setattr(
        engine.runner, "layers", lambda batch: batches.append(batch) or layers(batch)
    )
    run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)])
    assert run.advance(0.0) is None
    assert not batches[0].halted.any()
    run.halt()
    assert batches[0].halted.all()


class LogitsAsTokens:
    def __init__(self, logits):
        self._logits = logits

    def read(self):
        return list(self._logits.float())


def test_operations_are_swapped_while_sequences_run(folder, monkeypatch):
    """Also between two layers of a pass: KV so far is converted, the rest is stored in pairs."""
    if kernels.why_not_loaded() is not None:
        pytest.skip(kernels.why_not_loaded())
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    # The logits themselves in the place of tokens.
    monkeypatch.setattr("engine.runtime.engine.draw", lambda logits, *_: LogitsAsTokens(logits))
    engine = load(folder, dtype="bfloat16")
    assert "torch" in engine.forward_name
    reference = load(folder, dtype="bfloat16", operations="torch")

    def logits_of(chosen, cut):
        made = sequence("a", 60, range(9, 1, -1))
        chosen.forward([Span(made, 0, 30)])
        with torch.inference_mode():
            run = chosen.begin([Span(made, 30, 30)])
            return in_slices(run, cut)[0]

    assert engine.prepare_improvement()
    swapped = logits_of(engine, lambda: engine.improve())
    while engine.improve():
        pass
    assert "C++" in engine.forward_name
    assert set(engine.cache.formats) == {"pairs"}
    expected = logits_of(reference, lambda: None)
    for got in (swapped, logits_of(engine, lambda: None)):
        assert (got - expected).abs().max() < 0.1 * expected.abs().max()


def test_blocks_travel_between_formats(folder):
    if kernels.why_not_loaded() is not None:
        pytest.skip(kernels.why_not_loaded())
    plain = load(folder, dtype="bfloat16", operations="torch")
    paired = load(folder, dtype="bfloat16", operations="cpp")
    made = sequence("a", 50, (3, 5, 4, 9))
    plain.forward([Span(made, 0, 50)])
    layers = len(plain.cache.layers)
    data = torch.empty(4 * plain.cache.block_bytes(0, layers), dtype=torch.uint8)
    plain.cache.gather((3, 5, 4, 9), 0, layers, data)
    paired.cache.scatter((8, 1, 2, 7), 0, layers, data)
    back = torch.empty_like(data)
    paired.cache.gather((8, 1, 2, 7), 0, layers, back)
    assert torch.equal(back, data)
    made.tokens.append(5)
    token = plain.forward([Span(made, 50, 1)])[0].token
    made.blocks = [8, 1, 2, 7]
    assert paired.forward([Span(made, 50, 1)])[0].token == token


@pytest.mark.parametrize(
    ("seen", "made"),
    [
        (Urgency.NONE, {"lane": "batch", "urgency": Urgency.PRESSED}),
        (Urgency.PROMPTS, {}),
        (Urgency.URGENT, {"urgency": Urgency.URGENT}),
    ],
)
def test_others_on_the_host_see_the_urgency_of_a_pass(folder, monkeypatch, seen, made):
    entered = []
    monkeypatch.setattr(
        CoreSharing, "enter", lambda cores, urgency=Urgency.NONE: entered.append(urgency)
    )
    prompt = sequence("p", 20, range(2))
    for name, value in made.items():
        setattr(prompt, name, value)
    engine = load(folder)
    engine.forward([Span(prompt, 0, 20)])
    # A step of what has output is nobody's first token.
    prompt.tokens.append(1)
    engine.forward([Span(prompt, 20, 1)])
    assert entered == [seen, Urgency.NONE]


def test_stored_kv_is_reported_before_a_token_is_sampled(folder, monkeypatch):
    engine = load(folder, dtype="float32")
    seen, logits = [], TorchOps.logits
    monkeypatch.setattr(
        TorchOps, "logits", lambda ops, *rest: seen.append("logits") or logits(ops, *rest)
    )
    run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)], lambda: seen.append("stored"))
    while run.advance(0.0) is None:
        assert run.layers_done < 4
    assert seen == ["stored", "logits"]
    assert run.layers_done == 4


def test_a_halted_pass_does_not_report_its_kv_as_stored(folder):
    engine = load(folder, dtype="float32")
    told = []
    run = engine.begin([Span(sequence("a", 30, range(2)), 0, 30)], lambda: told.append(1))
    assert run.advance(0.0) is None
    run.halt()
    assert run.advance() is None
    assert not told
