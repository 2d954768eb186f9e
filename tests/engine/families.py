"""Tiny random instances of the model families that are served, and of some that are not."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 512
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_HEADS_OF_16 = {"head_dim": 16}
_SMALL_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}

SERVED: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-multi-head": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama-multi-query": ("LlamaConfig", {"num_key_value_heads": 1}),
    "qwen2-sliding": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", _HEADS_OF_16),
    "mistral-sliding": ("MistralConfig", {"sliding_window": 40}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {"tie_word_embeddings": True}),
    "gemma": ("GemmaConfig", _HEADS_OF_16),
    "gemma2-softcap-sliding": (
        "Gemma2Config",
        {**_HEADS_OF_16, "sliding_window": 32, "attn_logit_softcapping": 5.0},
    ),
    "gemma3-sliding": (
        "Gemma3TextConfig",
        {
            **_HEADS_OF_16,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "mixtral-sliding": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": 40}),
    "qwen3-moe": ("Qwen3MoeConfig", {**_HEADS_OF_16, **_SMALL_EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-some-dense": (
        "Qwen3MoeConfig",
        {**_HEADS_OF_16, **_SMALL_EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [0]},
    ),
    "gpt-oss-sinks": (
        "GptOssConfig",
        {
            **_HEADS_OF_16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 32,
        },
    ),
}

# Older versions of transformers name no kind of these layers.
_LINEAR = "layers of kind linear_attention|does not use transformers' attention interface"
REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "encoder-decoder": ("T5Config", {}, "is an encoder-decoder"),
    "state-space": ("MambaConfig", {}, _LINEAR),
    "ALiBi": ("BloomConfig", {}, "does not use transformers' attention interface"),
    "latent attention": (
        "DeepseekV3Config",
        {"n_routed_experts": 4, "moe_intermediate_size": 16},
        "multi-head latent attention",
    ),
    "linear attention": (
        "Qwen3NextConfig",
        {"num_hidden_layers": 4, "num_experts": 4},
        _LINEAR,
    ),
    "not a language model": ("ViTConfig", {}, "is not a decoder language model"),
}


def config_of(name: str, extra: dict[str, object]) -> transformers.PretrainedConfig:
    """The tiny config of a family."""
    kind = getattr(transformers, name)
    return kind(**{**_SMALL, **extra})


def architecture(name: str) -> str:
    """The class that transformers builds for a config."""
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[getattr(transformers, name).model_type])


def save(folder: Path, name: str, extra: dict[str, object]) -> torch.nn.Module:
    """Make the random model, save it to `folder`, and return it for reference."""
    torch.manual_seed(0)
    config = config_of(name, extra)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model.eval()
