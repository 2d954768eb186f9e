"""A tiny random model with a byte-level tokenizer, in a folder like any other."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 320
BOS, EOS = 256, 257
_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def make(folder: Path, **config: object) -> torch.nn.Module:
    """Write model and tokenizer to `folder`; returns the model, in float32, for reference.

    The weights are spread so that greedy output does not fall into a short cycle.
    """
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **{
                "hidden_size": 96,
                "intermediate_size": 192,
                "num_hidden_layers": 3,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 2048,
                "initializer_range": 0.3,
                "bos_token_id": BOS,
                "eos_token_id": EOS,
                "dtype": "float32",
                **config,
            }
        )
    )
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    generation = {"bos_token_id": BOS, "eos_token_id": EOS}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return model.eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|start|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
