"""Several replicas of one process may load their models at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.config import ModelConfig
from engine.model.loading import load_weights
from engine.model.self_check import probe_layout
from engine.model_description import describe

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
