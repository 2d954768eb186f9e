"""Keys and values in FP8: both forwards agree, and who has no such blocks says so."""

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.fp8.values import has_fp8
from engine.kv.memory import block_bytes
from engine.model_description import describe
from engine.runtime.engine import Engine
from tests.engine.families import SERVED, save
from tests.engine.model.test_families import BLOCKS, generate
from tests.fp8_models import E4M3, save_fp8

CPU = torch.device("cpu")
IN_FP8 = KvConfig(blocks=BLOCKS, dtype="fp8_e4m3")
PROMPTS = [[(11 * i + n) % 500 + 3 for i in range(n)] for n in (1, 17, 70)]


def engine_of(folder, kv=IN_FP8, **options):
    config = ModelConfig(**{"path": str(folder), "dtype": "float32", **options})
    return Engine.load(describe(config), kv, config, device=CPU, most_tokens=1)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2-softcap-sliding"])
def test_both_forwards_give_the_same_tokens(family, tmp_path):
    save(tmp_path, *SERVED[family])
    engine = engine_of(tmp_path)
    assert engine.cache.layers[0].dtype == E4M3
    expected = generate(engine, PROMPTS)
    assert generate(engine_of(tmp_path, forward="transformers"), PROMPTS) == expected


def test_blocks_take_a_byte_a_number_and_change_what_is_generated(tmp_path):
    save(tmp_path, *SERVED["llama"])
    engine, exact = engine_of(tmp_path), engine_of(tmp_path, KvConfig(blocks=BLOCKS))
    assert block_bytes(exact.cache.layout) == 4 * block_bytes(engine.cache.layout)
    assert generate(exact, PROMPTS) != generate(engine, PROMPTS)


def test_sinks_are_attended_to_beside_keys_in_fp8(tmp_path):
    save(tmp_path, *SERVED["gpt-oss-sinks"])
    assert len(generate(engine_of(tmp_path), PROMPTS)) == len(PROMPTS)


def test_fp8_weights_and_fp8_kv_together(tmp_path):
    model = save(tmp_path, *SERVED["qwen3"])
    save_fp8(tmp_path, model, "fine-grained")
    expected = generate(engine_of(tmp_path), PROMPTS)
    assert generate(engine_of(tmp_path, forward="transformers"), PROMPTS) == expected


def test_blocks_of_two_types_are_not_exchanged(tmp_path):
    save(tmp_path, *SERVED["llama"])
    here = engine_of(tmp_path).cache.layout
    there = engine_of(tmp_path, KvConfig(blocks=4)).cache.layout
    assert here.difference(there) == "dtype: fp8_e4m3 here, float32 there"


def test_operations_without_blocks_in_fp8_are_refused_by_name(tmp_path):
    name, extra = SERVED["llama"]
    save(tmp_path, name, {**extra, "head_dim": 32})
    refused = {
        "cpp": "the C.. operations keep KV in bfloat16, not in fp8_e4m3",
        "flashinfer": "flashinfer: not with kv.dtype: fp8_e4m3",
    }
    for operations, reason in refused.items():
        with pytest.raises(UnsupportedModel, match=reason):
            engine_of(tmp_path, dtype="bfloat16", operations=operations)
    assert "torch operations" in engine_of(tmp_path, dtype="bfloat16").forward_name


def test_gpus_from_capability_8_9_on_have_fp8(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not has_fp8(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert has_fp8(torch.device("cuda", 0))
    assert not has_fp8(CPU)
