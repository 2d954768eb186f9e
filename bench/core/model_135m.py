"""The model of all measurements: a Llama of 135 M random parameters, from a seed.

A GPU is measured with a larger one (`SIZES`). The tokenizer has one word for each token, so that a
text has as many tokens as words.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

UNKNOWN, BOS, EOS = 0, 1, 2
FIRST_WORD = 3
SEED = 0
_DONE = "shape.json"
# Weights spread wider than the usual 0.02: greedy output does not fall into a short cycle.
_SPREAD, _SPREAD_HIDDEN = 0.04, 576
# From this size on the weights are made on a GPU, because a CPU takes minutes.
_LARGE_HIDDEN = 2048


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama with tied embeddings, in bfloat16. The defaults are SmolLM-135M's sizes."""

    hidden: int = 576
    intermediate: int = 1536
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    vocabulary: int = 49_152
    context: int = 8192

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def head_parameters(self) -> int:
        """Weights of the output matrix, which is the embedding too."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Weights of all the layers' matrices."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_size
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token, all layers, in bfloat16."""
        return self.layers * 2 * self.kv_heads * self.head_size * 2


DEFAULT_SIZE = "135m"
SIZES: Mapping[str, ModelShape] = {
    DEFAULT_SIZE: ModelShape(),
    "8b": ModelShape(hidden=4096, intermediate=14_336, layers=32, heads=32, kv_heads=8),
}


def make(folder: Path, shape: ModelShape | None = None, seed: int = SEED) -> Path:
    """Write model and tokenizer to `folder` unless they are there already; returns the folder."""
    shape = shape or ModelShape()
    wanted = json.dumps({"seed": seed, **asdict(shape)})
    done = folder / _DONE
    if done.is_file() and done.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write_model(folder, shape, seed)
    _write_tokenizer(folder, shape.vocabulary)
    done.write_text(wanted)
    return folder


def vocabulary_words(size: int) -> list[str]:
    """The word of each token id."""
    return ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(FIRST_WORD, size))]


def _write_model(folder: Path, shape: ModelShape, seed: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from engine.device import best_device

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        # In a wider model as wide, one forward's rounding would make another of it.
        initializer_range=_SPREAD * min(1.0, math.sqrt(_SPREAD_HIDDEN / shape.hidden)),
        rope_parameters={"rope_theta": 10_000.0, "rope_type": "default"},
        bos_token_id=BOS,
        eos_token_id=EOS,
        dtype="bfloat16",
    )
    torch.manual_seed(seed)
    with best_device() if shape.hidden >= _LARGE_HIDDEN else torch.device("cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def _write_tokenizer(folder: Path, size: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: token for token, word in enumerate(vocabulary_words(size))}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
