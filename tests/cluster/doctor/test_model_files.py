"""The memory plan of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cluster.config.schema import parse_config
from cluster.doctor.findings import Severity
from cluster.doctor.gpus import Gpu
from cluster.doctor.model_files import layout_of, look_at_model, weight_bytes
from engine.config import KvConfig, ModelConfig
from engine.kv.memory import block_bytes
from engine.model.loading import load_weights
from engine.model.self_check import probe_layout
from engine.model_description import describe
from engine.weights.stored_tensors import StoredTensor, stored_tensors

DEMO = Path(__file__).parents[3] / "models" / "demo"


def configured(folder=DEMO, kv=None, **replicas):
    sections = {name: {"replicas": count} for name, count in replicas.items()}
    model = {"path": str(folder), "dtype": "float32"}
    return parse_config({"model": model, "kv": kv or {}} | sections)


def found(folder, free_bytes, gpus=(), kv=None, **replicas):
    return list(look_at_model(configured(folder, kv, **replicas), gpus, free_bytes))


def demo_bytes():
    return weight_bytes(stored_tensors(DEMO).values(), "float32")


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.mark.parametrize(
    ("copies", "severity"),
    [(1.5, Severity.ERROR), (2.1, Severity.WARNING), (9, Severity.OK)],
)
def test_weights_must_fit_as_often_as_replicas_hold_them(copies, severity):
    first, tokenizer, memory = found(DEMO, int(copies * demo_bytes()), prefill=1, decode=1)
    assert first.severity is Severity.OK and "million parameters" in first.found
    assert (tokenizer.subject, tokenizer.severity) == ("tokenizer", Severity.OK)
    assert (memory.subject, memory.severity) == ("memory", severity)


def test_replicas_are_spread_over_gpus():
    gpus = [Gpu("H100", 2 * demo_bytes(), (9, 0))] * 4
    *_, memory = found(DEMO, 0, gpus, prefill=2, decode=2)
    assert memory.severity is Severity.OK and "1 x " in memory.found


def test_a_model_that_is_not_there_is_an_error(tmp_path):
    (only,) = found(tmp_path / "none", 1)
    assert only.severity is Severity.ERROR and "does not exist" in only.found


def test_kv_blocks_must_fit_beside_the_weights():
    plenty = 10 * demo_bytes()
    *_, memory = found(DEMO, plenty, kv={"blocks": 8}, prefill=1, decode=1)
    assert memory.severity is Severity.OK and "KV" in memory.found
    *_, memory = found(DEMO, plenty, kv={"blocks": 50_000_000}, prefill=1, decode=1)
    assert memory.severity is Severity.ERROR and "kv.blocks" in memory.change


@pytest.mark.parametrize("dtype", ["auto", "fp8_e4m3"])
def test_a_block_is_as_large_as_the_engine_s(dtype):
    model = describe(ModelConfig(path=str(DEMO), dtype="float32"))
    module = load_weights(model, torch.device("cpu"))
    layout = probe_layout(model, module, KvConfig().block_size, dtype)
    own = layout_of(configured(kv={"dtype": dtype}), model)
    assert block_bytes(own) == block_bytes(layout)


def test_weights_count_as_they_are_loaded():
    stored = [
        StoredTensor(Path("w"), dtype, (10, 10), 0)
        for dtype in (torch.float32, torch.float8_e4m3fn, torch.uint8)
    ]
    assert weight_bytes(stored, "bfloat16") == 200 + 100 + 400


def test_a_file_that_ends_early_is_an_error(copy):
    weights = copy / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 100_000)
    (only,) = found(copy, 1 << 40)
    assert only.severity is Severity.ERROR and "cut short" in only.found


def test_a_model_without_a_tokenizer_is_an_error(copy):
    for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"):
        (copy / name).unlink(missing_ok=True)
    tokenizer = found(copy, 1 << 40)[1]
    assert (tokenizer.subject, tokenizer.severity) == ("tokenizer", Severity.ERROR)


def test_a_model_without_weights_is_an_error(copy):
    (copy / "model.safetensors").unlink()
    (only,) = found(copy, 1 << 40)
    assert only.severity is Severity.ERROR and "no weights" in only.found


@pytest.mark.parametrize("wrong", [{"num_attention_heads": 0}, {"num_hidden_layers": "4"}])
def test_a_config_with_wrong_values_is_an_error(copy, wrong):
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    (model,) = found(copy, 1 << 40)
    assert (model.subject, model.severity) == ("model", Severity.ERROR)
    assert "config.json" in model.found
