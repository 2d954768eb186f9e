"""Stored scales of keys and values: the module computes as before, and its KV fits FP8."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.fp8.kv_scales import fold_kv_scales
from engine.fp8.module import Fp8Linear
from engine.model.loading import load_weights
from engine.model.self_check import check_tokens, reference_logits
from engine.model_description import describe
from engine.runtime.engine import Engine
from tests.engine.families import SERVED, save
from tests.engine.model.test_families import BLOCKS, generate
from tests.fp8_models import save_fp8, wide_shape

CPU = torch.device("cpu")
PROMPTS = [[(11 * i + n) % 500 + 3 for i in range(n)] for n in (1, 17, 40)]
IN_FP8 = KvConfig(blocks=BLOCKS, dtype="fp8_e4m3")
NAME = "model.layers.{}.self_attn.{}"


def store(folder, **more):
    """Add the same scales of every layer to a checkpoint."""
    file = folder / "model.safetensors"
    tensors = load_file(file) | {
        NAME.format(layer, name): torch.tensor(value)
        for layer in range(4)
        for name, value in more.items()
    }
    save_file(tensors, file, {"format": "pt"})


def loaded(folder, dtype="bfloat16"):
    description = describe(ModelConfig(path=str(folder), dtype=dtype))
    return description, load_weights(description, CPU)


def engine_of(folder, kv=IN_FP8, **options):
    config = ModelConfig(path=str(folder), **{"dtype": "float32", **options})
    return Engine.load(describe(config), kv, config, device=CPU, most_tokens=1)


FAMILIES = ["llama", "qwen2-sliding", "qwen3", "gemma2-softcap-sliding", "mixtral", "gpt-oss-sinks"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_gives_the_same_bits(family, dtype, tmp_path):
    save(tmp_path, *SERVED[family])
    store(tmp_path, k_scale=0.3, v_scale=[0.011])
    description, model = loaded(tmp_path, dtype)
    tokens = check_tokens(description)
    before = reference_logits(model, tokens)
    assert fold_kv_scales(description, model)
    assert torch.equal(reference_logits(model, tokens), before)


@pytest.mark.parametrize("form", ["fine-grained", "compressed by tensor, static"])
def test_so_does_a_module_that_keeps_fp8(form, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.model.loading.has_fp8", lambda device: True)
    name, extra = SERVED["qwen2-sliding"]
    save_fp8(tmp_path, save(tmp_path, name, {**extra, **wide_shape()}), form)
    store(tmp_path, k_scale=0.3, v_scale=0.011)
    description, model = loaded(tmp_path)
    assert isinstance(model.model.layers[0].self_attn.o_proj, Fp8Linear)
    tokens = check_tokens(description)
    before = reference_logits(model, tokens)
    assert fold_kv_scales(description, model)
    assert torch.equal(reference_logits(model, tokens), before)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "names", [("k_scale", "v_scale"), ("k_proj.output_scale", "v_proj.v_scale")]
)
def test_stored_keys_and_values_are_divided_by_the_next_power_of_two(family, names, tmp_path):
    save(tmp_path, *SERVED[family])
    config = KvConfig(blocks=BLOCKS, dtype="fp8_e4m3")
    plain = first_block(engine_of(tmp_path, config))
    store(tmp_path, **dict(zip(names, (0.3, 0.011), strict=True)))
    scaled = first_block(engine_of(tmp_path, config))
    for found, before, scale in zip(scaled, plain, (0.5, 1 / 64), strict=True):
        wanted = before / scale
        assert (found - wanted).norm() <= 0.05 * wanted.norm()


def first_block(engine):
    """Keys and values of the first layer and the first block, [2, tokens, heads, size]."""
    prompt = list(range(5, 5 + engine.cache.layout.block_size))
    generate(engine, [prompt])
    used = engine.cache.layers[0].float().flatten(2).abs().sum((0, 2)).nonzero()[0]
    return engine.cache.layers[0][:, int(used)].float()


def test_values_beyond_448_need_their_scale(tmp_path):
    model = save(tmp_path, *SERVED["llama"])
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data *= 20000
        layer.self_attn.o_proj.weight.data /= 20000
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="disagrees with the model's own"):
        engine_of(tmp_path)
    store(tmp_path, v_scale=1000.0)
    assert len(generate(engine_of(tmp_path), PROMPTS)) == len(PROMPTS)


def test_both_forwards_give_the_same_tokens(tmp_path):
    save(tmp_path, *SERVED["qwen3"])
    store(tmp_path, k_scale=0.02, v_scale=3.0)
    expected = generate(engine_of(tmp_path), PROMPTS)
    assert generate(engine_of(tmp_path, forward="transformers"), PROMPTS) == expected


def test_kv_with_scales_is_not_exchanged_with_kv_without(tmp_path, monkeypatch):
    """An older version has the same model, and ignores the scales."""
    save(tmp_path, *SERVED["llama"])
    store(tmp_path, k_scale=0.3)
    here = engine_of(tmp_path).cache.layout
    exact = engine_of(tmp_path, KvConfig(blocks=BLOCKS)).cache.layout
    assert here.model_identity == f"{exact.model_identity}-scaled-kv"
    monkeypatch.setattr("engine.runtime.engine.fold_kv_scales", lambda *parts: False)
    assert "model_identity" in here.difference(engine_of(tmp_path).cache.layout)


@pytest.mark.parametrize(
    ("family", "scale"),
    [("gemma3-sliding", 0.3), ("phi3", 0.3), ("llama", [0.3, 0.4]), ("llama", -1.0)],
)
def test_scales_that_are_not_used_are_named(family, scale, tmp_path, caplog):
    save(tmp_path, *SERVED[family])
    store(tmp_path, k_scale=scale)
    description, model = loaded(tmp_path)
    assert not fold_kv_scales(description, model)
    assert "stored and not used: model.layers.0.self_attn.k_scale" in caplog.text


def test_a_checkpoint_without_scales_says_nothing(tmp_path, caplog):
    save(tmp_path, *SERVED["llama"])
    assert not fold_kv_scales(*loaded(tmp_path))
    assert "scale" not in caplog.text
