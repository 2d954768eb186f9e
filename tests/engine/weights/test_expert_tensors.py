"""Experts in all forms of checkpoints: one by one, stacked, and as MXFP4."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.model.loading import load_weights
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.weights.expert_tensors import from_mxfp4, stored_parts
from engine.weights.stored_tensors import stored_tensors
from tests.engine.families import SERVED, save


def loaded(folder, monkeypatch):
    def never(*arguments):
        raise AssertionError("not read directly")

    monkeypatch.setattr("engine.model.loading.loaded_by_transformers", never)
    return load_weights(describe(ModelConfig(path=str(folder))), torch.device("cpu"))


def same(model, reference):
    found, wanted = dict(model.named_parameters()), dict(reference.named_parameters())
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) for name in wanted
    )


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_stacks_under_the_names_of_the_module_are_read(family, tmp_path, monkeypatch):
    """Others save them so; the tests of loading read the experts one by one."""
    reference = save(tmp_path, *SERVED[family])
    assert any("experts.0." in name for name in stored_tensors(tmp_path))
    save_file(reference.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    assert same(loaded(tmp_path, monkeypatch), reference)


def test_a_missing_expert_is_refused_by_name(tmp_path):
    save(tmp_path, *SERVED["mixtral"])
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel):
        load_weights(describe(ModelConfig(path=str(tmp_path))), torch.device("cpu"))


def test_parts_of_other_shapes_are_not_taken(tmp_path):
    save(tmp_path, *SERVED["mixtral"])
    stored = stored_tensors(tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert len(stored_parts(name, (4, 192, 64), stored)) == 8
    assert stored_parts(name, (4, 96, 64), stored) is None
    assert stored_parts(name, (5, 192, 64), stored) is None
    assert stored_parts("model.layers.0.mlp.gate.weight", (5, 64), stored) is None
    assert stored_parts("lm_head.weight", (512, 64), stored) is None


def test_every_pair_of_numbers_and_every_scale_of_mxfp4():
    blocks = torch.arange(256, dtype=torch.uint8).view(16, 1, 16)
    scales = torch.arange(110, 142, 2, dtype=torch.uint8).view(16, 1)
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)
    assert torch.equal(from_mxfp4(blocks, scales), expected[0].T)


@pytest.fixture
def mxfp4(tmp_path):
    """A folder with experts in MXFP4, and the same model."""
    reference = save(tmp_path, *SERVED["gpt-oss-sinks"])
    weights = load_file(tmp_path / "model.safetensors")
    for name, parameter in reference.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = parameter.shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(123, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
            weights |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            del weights[name]
            whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            parameter.data.copy_(whole)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, reference


def test_mxfp4_is_read_as_the_numbers_that_it_stands_for(mxfp4, monkeypatch):
    folder, reference = mxfp4
    assert same(loaded(folder, monkeypatch), reference)


@pytest.mark.parametrize("forward", ["compact", "transformers"])
def test_mxfp4_is_served_by_both_forwards(mxfp4, forward):
    folder, _ = mxfp4
    config = ModelConfig(path=str(folder), forward=forward, dtype="bfloat16")
    engine = Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    assert engine.forward_name.startswith(forward)
