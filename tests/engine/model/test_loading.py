"""Weights are read as transformers reads them, also by several replicas of one process at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.config import ModelConfig
from engine.errors import ConfigError, UnsupportedModel
from engine.model import fused_phi
from engine.model.fused_weights import FAMILIES, read
from engine.model.loading import load_weights
from engine.model.self_check import probe_layout
from engine.model_description import describe
from tests.engine.families import SERVED, architecture, save

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.fixture
def description(tmp_path):
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    return describe(ModelConfig(path=str(tmp_path), dtype="float32"))


def test_models_loaded_at_once_have_their_tied_weights(description):
    untouched = PreTrainedModel.tie_weights

    def load(_):
        return load_weights(description, torch.device("cpu"))

    try:
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(load, range(24)))
        assert PreTrainedModel.tie_weights is untouched
    finally:
        PreTrainedModel.tie_weights = untouched
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in models)


def test_the_shapes_of_models_loaded_at_once_are_not_mixed(description):
    model = load_weights(description, torch.device("cpu"))
    alone = probe_layout(description, model, 16)
    models = [load_weights(description, torch.device("cpu")) for _ in range(4)]

    def probe(model):
        return [probe_layout(description, model, 16) for _ in range(12)]

    with ThreadPoolExecutor(4) as threads:
        learned = [one for some in threads.map(probe, models) for one in some]
    assert learned == [alone] * 48


DIRECT_FAMILIES = (*FAMILIES, fused_phi.FAMILY)
DIRECT = [name for name, (config, _) in SERVED.items() if architecture(config) in DIRECT_FAMILIES]


def by_transformers(description):
    """The model as `transformers` alone loads it."""
    return AutoModelForCausalLM.from_pretrained(
        description.folder,
        dtype=getattr(torch, description.dtype),
        attn_implementation="eager",
        local_files_only=True,
    ).eval()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", DIRECT)
def test_a_family_is_read_as_transformers_reads_it(family, dtype, tmp_path, monkeypatch):
    """Sharded, in another type than it is stored in: all weights, buffers and logits are equal."""
    save(tmp_path / "whole", *SERVED[family])
    by_transformers(describe(ModelConfig(path=str(tmp_path / "whole")))).save_pretrained(
        tmp_path, max_shard_size="100KB"
    )
    assert len([*tmp_path.glob("*.safetensors")]) > 2
    description = describe(ModelConfig(path=str(tmp_path), dtype=dtype))
    expected = by_transformers(description)

    def never(*arguments):
        raise AssertionError("not read directly")

    monkeypatch.setattr("engine.model.loading.loaded_by_transformers", never)
    model = load_weights(description, torch.device("cpu"))
    found, wanted = dict(model.named_parameters()), dict(expected.named_parameters())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert all(found[name].dtype == wanted[name].dtype for name in wanted)
    found, wanted = dict(model.named_buffers()), dict(expected.named_buffers())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    tokens = torch.tensor([[5, 9, 300, 77]])
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, expected(tokens).logits)


@pytest.mark.parametrize("family", DIRECT)
def test_fusing_copies_no_weight(family, tmp_path):
    save(tmp_path, *SERVED[family])
    description = describe(ModelConfig(path=str(tmp_path)))
    model = load_weights(description, torch.device("cpu"))
    places = {one.untyped_storage().data_ptr() for one in model.parameters()}
    phi = architecture(SERVED[family][0]) == fused_phi.FAMILY
    decoder = (fused_phi.read if phi else read)(model, 64)
    fused = [
        linear.weight
        for layer in decoder.layers
        for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    assert {one.untyped_storage().data_ptr() for one in fused} <= places


def test_other_checkpoints_are_left_to_transformers(tmp_path):
    """A base model's checkpoint has no prefix; one with both tied weights may have two of them."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    model.model.save_pretrained(tmp_path / "base")
    description = describe(ModelConfig(path=str(tmp_path / "base"), dtype="float32"))
    loaded = load_weights(description, torch.device("cpu"))
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)

    model.save_pretrained(tmp_path / "both")
    weights = load_file(tmp_path / "both" / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1
    save_file(weights, tmp_path / "both" / "model.safetensors", {"format": "pt"})
    description = describe(ModelConfig(path=str(tmp_path / "both"), dtype="float32"))
    loaded = load_weights(description, torch.device("cpu"))
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight + 1)


def test_a_missing_weight_is_refused_by_name(tmp_path):
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    description = describe(ModelConfig(path=str(tmp_path), dtype="float32"))
    with pytest.raises(UnsupportedModel, match=r"1 weights are missing, first model\.layers\.1\."):
        load_weights(description, torch.device("cpu"))


def test_weights_that_find_no_room_are_refused_before_they_are_read(description, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 80 << 30))
    monkeypatch.setattr("engine.model.loading.place_parameters", None)
    with pytest.raises(ConfigError, match=r"the weights need 0\.00 GiB, and there is 0\.00 GiB"):
        load_weights(description, torch.device("cuda", 0))
