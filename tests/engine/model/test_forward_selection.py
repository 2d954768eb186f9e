"""Which operations serve a model on CUDA, and that Triton's serve every compact family."""

import importlib.util

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.model import forward_selection as choose
from engine.model.forward_selection import RecordedSteps
from engine.model.fused_forward import CompactRunner
from engine.model.fused_weights import FAMILIES, read
from engine.model.loading import load_weights
from engine.model.ops_cuda import TritonOps, attention_named
from engine.model.self_check import check_runner, check_tokens, probe_layout, reference_logits
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.startup_timer import StartupTimer
from tests import tiny
from tests.engine.families import SERVED, architecture, save
from tests.engine.kinds import why_no_triton
from tests.engine.model.test_families import BLOCKS, generate

COMPACT = [f for f, (name, _) in SERVED.items() if architecture(name) in FAMILIES]


@pytest.mark.parametrize("family", COMPACT)
def test_triton_operations_serve_a_family(family, tmp_path):
    """A prompt in two chunks over scattered blocks, against the module's own logits."""
    if reason := why_no_triton():
        pytest.skip(reason)
    save(tmp_path, *SERVED[family])
    description = describe(ModelConfig(path=str(tmp_path), dtype="float32"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_weights(description, device)
    layout = probe_layout(description, model, 16)
    expected = reference_logits(model, check_tokens(description))
    decoder = read(model, description.context_tokens)
    runner = CompactRunner(decoder, TritonOps(decoder))
    check_runner(description, runner, layout, device, expected)


def test_why_steps_cannot_be_recorded_is_reported(tmp_path):
    if reason := why_no_triton():
        pytest.skip(reason)
    model = save(tmp_path, *SERVED["mixtral"])
    assert TritonOps(read(model, 64)).not_recorded == "the experts are on cpu"
    model = save(tmp_path, *SERVED["llama"])
    assert TritonOps(read(model, 64)).not_recorded is None


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="it is installed")
def test_flashinfer_is_refused_for_sinks(tmp_path):
    decoder = read(save(tmp_path, *SERVED["gpt-oss-sinks"]), 64)
    with pytest.raises(UnsupportedModel, match="flashinfer: not for attention sinks"):
        attention_named("flashinfer", decoder)
    decoder = read(save(tmp_path, *SERVED["llama"]), 64)
    with pytest.raises(UnsupportedModel, match="flashinfer: it is not installed"):
        attention_named("flashinfer", decoder)


@pytest.mark.parametrize("operations", ["triton", "flashinfer"])
def test_cuda_operations_are_refused_without_cuda(tmp_path, operations, monkeypatch):
    monkeypatch.setattr("engine.runtime.engine.best_device", lambda: torch.device("cpu"))
    tiny.make(tmp_path)
    config = ModelConfig(path=str(tmp_path), operations=operations)
    with pytest.raises(UnsupportedModel, match=f"{operations}: the weights are on cpu"):
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)


def test_steps_are_recorded_piece_by_piece(tmp_path, monkeypatch, caplog):
    """The engine's own way, with a stand-in for the graphs."""
    used = []

    def graphs(device):
        return lambda step: step() is not None and (lambda: used.append(step.args) or step())

    monkeypatch.setattr(choose, "CudaGraphs", graphs)
    tiny.make(tmp_path)
    config = ModelConfig(path=str(tmp_path), dtype="float32", operations="torch")
    description = describe(config)
    cpu = torch.device("cpu")
    engine = Engine.load(description, KvConfig(blocks=BLOCKS), config, device=cpu, most_tokens=1)
    prompts = [[(7 * i + n) % 250 for i in range(n)] for n in (1, 5, 17, 100)]
    expected = generate(engine, prompts)
    recording = RecordedSteps(engine.runner, 512, 128)
    timer = StartupTimer("improvement")
    engine = Engine(description, engine.runner, engine.cache, improvement=recording, timer=timer)
    assert engine.prepare_improvement()
    pieces = 0
    while engine.improve():
        pieces += 1
        assert timer.stage is not None and (timer.stage.done, timer.stage.total) == (pieces, 22)
        assert generate(engine, prompts) == expected
    assert "a first batch failed" not in caplog.text
    assert pieces == 11 + 11  # kinds of batches that are computed once, sizes that are recorded
    assert (4,) in used
