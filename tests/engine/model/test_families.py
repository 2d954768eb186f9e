"""Every family that is served generates what transformers generates; the others are refused."""

import random

import pytest
import torch

from engine import kernels
from engine.config import KvConfig, ModelConfig
from engine.errors import UnsupportedModel
from engine.kv.block_pool import BlockPool
from engine.model import fused_phi as compact_phi
from engine.model.fused_weights import FAMILIES
from engine.model.loading import load_weights
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.families import REFUSED, SERVED, VOCABULARY, architecture, config_of, save

PROMPTS = (1, 5, 16, 17, 100, 333)
NEW_TOKENS = 16
CHUNK = 64
BLOCKS = 120


def generate(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts at once, in chunks and then token by token, over blocks out of order."""
    pool = BlockPool(BLOCKS)
    blocks = random.Random(1).sample(pool.allocate("all", BLOCKS), BLOCKS)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)
    sequences = []
    for number, prompt in enumerate(prompts):
        new = Sequence(str(number), list(prompt), len(prompt), greedy)
        needed = engine.cache.layout.blocks_for(len(prompt) + NEW_TOKENS)
        new.blocks, blocks = blocks[:needed], blocks[needed:]
        sequences.append(new)
    while running := [s for s in sequences if s.output_tokens < NEW_TOKENS]:
        spans = [Span(s, s.computed, min(CHUNK, s.remaining)) for s in running]
        for span, sampled in zip(spans, engine.forward(spans), strict=True):
            span.sequence.computed += span.count
            if sampled is not None:
                span.sequence.tokens.append(sampled.token)
    return [s.tokens for s in sequences]


BOTH_WAYS = [
    *((family, "transformers") for family in SERVED),
    *(
        (family, "compact")
        for family, (name, _) in SERVED.items()
        if architecture(name) in (*FAMILIES, compact_phi.FAMILY)
    ),
]


@pytest.mark.parametrize(("family", "forward"), BOTH_WAYS)
def test_a_family_is_served_exactly(family, forward, tmp_path):
    reference = save(tmp_path, *SERVED[family])
    config = ModelConfig(path=str(tmp_path), dtype="float32", forward=forward)
    engine = Engine.load(describe(config), KvConfig(blocks=BLOCKS), config, most_tokens=1)
    assert engine.forward_name.startswith(forward)
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in PROMPTS]
    expected = [
        reference.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )[0].tolist()
        for prompt in prompts
    ]
    assert generate(engine, prompts) == expected


@pytest.mark.parametrize("family", REFUSED)
def test_an_unsupported_model_is_refused_by_name(family, tmp_path):
    name, extra, reason = REFUSED[family]
    config = config_of(name, extra)
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        load_weights(describe(ModelConfig(path=str(tmp_path))), torch.device("cpu"))
    assert "\n" not in refusal.value.message


def test_bfloat16_passes_the_self_check(tmp_path):
    save(tmp_path, *SERVED["llama"])
    description = describe(ModelConfig(path=str(tmp_path), dtype="bfloat16"))
    engine = Engine.load(description, KvConfig(blocks=4), most_tokens=1)
    assert engine.cache.layout.dtype == "bfloat16"


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(UnsupportedModel, match="does not exist"):
        describe(ModelConfig(path=str(tmp_path / "nothing")))
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        describe(ModelConfig(path=str(tmp_path)))


def test_phi_with_norms_of_its_queries_runs_through_its_module(tmp_path):
    save(tmp_path, "PhiConfig", {"qk_layernorm": True})
    config = ModelConfig(path=str(tmp_path), dtype="float32")
    engine = Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    assert engine.forward_name == "transformers"
    config = ModelConfig(path=str(tmp_path), forward="compact")
    with pytest.raises(UnsupportedModel, match="PhiForCausalLM has no compact forward: queries"):
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)


def test_experts_with_another_activation_run_through_their_module(tmp_path, caplog):
    save(tmp_path, "MixtralConfig", {"num_local_experts": 4, "hidden_act": "gelu"})
    config = ModelConfig(path=str(tmp_path), dtype="float32")
    with caplog.at_level("INFO", logger="engine.model.forward_selection"):
        engine = Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    assert engine.forward_name == "transformers"
    assert caplog.messages == ["the module's own forward: MixtralForCausalLM: activation gelu"]
    config = ModelConfig(path=str(tmp_path), forward="compact")
    with pytest.raises(UnsupportedModel, match="no compact forward: activation gelu"):
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)


def test_experts_have_no_c_operations(tmp_path, caplog):
    save(tmp_path, *SERVED["mixtral"])
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16")
    with caplog.at_level("INFO", logger="engine.model.forward_selection"):
        engine = Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    assert engine.forward_name == "compact, torch operations"
    assert caplog.messages == ["torch operations: there are no C++ operations for experts"]


def test_phi_has_torch_operations_alone(tmp_path):
    save(tmp_path, *SERVED["phi"])
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16", operations="cpp")
    with pytest.raises(UnsupportedModel, match="not for Phi's layers"):
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)


def test_identity_changes_with_the_weights(tmp_path):
    save(tmp_path / "a", *SERVED["llama"])
    save(tmp_path / "b", *SERVED["llama"])
    assert _identity(tmp_path / "a") == _identity(tmp_path / "b")
    weights = tmp_path / "b" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert _identity(tmp_path / "a") != _identity(tmp_path / "b")


def _identity(folder):
    return describe(ModelConfig(path=str(folder))).identity


def test_c_operations_serve_bfloat16_and_refuse_the_rest(tmp_path):
    name, extra = SERVED["llama"]
    save(tmp_path, name, {**extra, "head_dim": 32})
    config = ModelConfig(path=str(tmp_path), dtype="float32", operations="cpp")
    with pytest.raises(UnsupportedModel, match="are for bfloat16"):
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    if kernels.why_not_loaded() is not None:
        pytest.skip(kernels.why_not_loaded())
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16", operations="cpp")
    engine = Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
    assert set(engine.cache.formats) == {"pairs"}
    with pytest.raises(UnsupportedModel, match="has no compact forward"):
        save(tmp_path / "other", *SERVED["olmo2"])
        config = ModelConfig(path=str(tmp_path / "other"), forward="compact")
        Engine.load(describe(config), KvConfig(blocks=4), config, most_tokens=1)
