"""While weights are read, their bytes are counted: in the end as many as the files have of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.model.loading import load_weights
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.safetensors_header import read_header
from engine.startup_timer import StageProgress, StartupTimer
from engine.weights import stored_tensors
from engine.weights.stored_tensors import TensorReader
from tests.engine.families import SERVED, save
from tests.fp8_models import save_fp8, wide_shape

CPU = torch.device("cpu")
DEMO = Path(__file__).resolve().parents[3] / "models" / "demo"


def bytes_of_weights(folder: Path) -> int:
    """The sizes of the files without their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            _, _, begin = read_header(file, path)
        total += path.stat().st_size - begin
    return total


def read(folder: Path, dtype: str = "auto") -> StageProgress:
    """How far the stage is once the weights are read."""
    timer = StartupTimer("weights")
    load_weights(describe(ModelConfig(path=str(folder), dtype=dtype)), CPU, timer)
    assert timer.stage is not None
    return timer.stage


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama-tied", "qwen3", "mixtral", "gpt-oss-sinks"])
def test_all_bytes_of_all_shards_are_counted(family, dtype, tmp_path):
    model = save(tmp_path / "whole", *SERVED[family])
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 2
    stage = read(tmp_path, dtype)
    assert (stage.done, stage.total) == (bytes_of_weights(tmp_path),) * 2
    assert stage.unit == "bytes"


@pytest.mark.parametrize("form", ["fine-grained", "compressed by channel"])
@pytest.mark.parametrize("kept", [False, True])
def test_fp8_counts_as_it_is_stored(form, kept, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.model.loading.has_fp8", lambda device: kept)
    name, extra = SERVED["llama"]
    save_fp8(tmp_path, save(tmp_path, name, {**extra, **wide_shape()}), form)
    stage = read(tmp_path)
    assert (stage.done, stage.total) == (bytes_of_weights(tmp_path),) * 2


def test_mxfp4_counts_as_it_is_stored(tmp_path):
    save(tmp_path, *SERVED["gpt-oss-sinks"])
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = weights.pop(name).shape
        weights[f"{name}_blocks"] = torch.zeros(experts, outputs, inputs // 32, 16).byte()
        weights[f"{name}_scales"] = torch.full((experts, outputs, inputs // 32), 127).byte()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    stage = read(tmp_path)
    assert (stage.done, stage.total) == (bytes_of_weights(tmp_path),) * 2


def test_a_reading_is_no_longer_than_the_buffer(tmp_path, monkeypatch):
    """So that a large tensor moves the progress, too."""
    monkeypatch.setattr(stored_tensors, "BUFFER_BYTES", 1000)
    save_file({"a": torch.arange(700.0)}, tmp_path / "model.safetensors")
    stored, counts = stored_tensors.stored_tensors(tmp_path)["a"], []
    for target in (torch.empty(700), torch.empty(700, dtype=torch.float64)):
        TensorReader(CPU, counts.append).read([(stored, target)])
        assert torch.equal(target.float(), torch.arange(700.0))
    assert counts == [1000, 1000, 800] * 2 and stored.nbytes == 2800


def test_a_failed_reading_counts_what_it_has_read(tmp_path, monkeypatch):
    save(tmp_path, *SERVED["llama"])
    description = describe(ModelConfig(path=str(tmp_path)))
    path, timer = tmp_path / "model.safetensors", StartupTimer("weights")
    known = stored_tensors.stored_tensors(tmp_path)
    monkeypatch.setattr("engine.model.loading.stored_tensors", lambda folder: known)
    path.write_bytes(path.read_bytes()[:-1000])  # the file shrinks, once its header is read
    with pytest.raises(UnsupportedModel, match="ended early"):
        load_weights(description, CPU, timer)
    assert timer.stage is not None and timer.stage.total is not None
    assert 0 < timer.stage.done < timer.stage.total


def test_an_engine_counts_the_bytes_of_the_demo_model():
    config, timer = ModelConfig(path=str(DEMO)), StartupTimer("import")
    Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1, timer=timer)
    assert timer.counted == {"weights": bytes_of_weights(DEMO)}
    assert timer.stage is None
    assert list(timer.took) == ["import", "weights", "reference", "operations", "check", "pool"]
