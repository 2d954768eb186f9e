"""Write a Llama checkpoint as GGUF for llama.cpp, weights bit for bit, without its tokenizer.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Names and the order of rotary
pairs are llama.cpp's (`convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

ALIGNMENT = 32
_MAGIC, _VERSION = b"GGUF", 3
_UINT32, _FLOAT32, _STRING = 4, 6, 8
_TYPES = {torch.float32: 0, torch.bfloat16: 30}
_MOSTLY_BF16 = 32
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file."""

    name: str
    tensor: torch.Tensor

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return self.tensor.numel() * self.tensor.element_size()


def write(model: Path, target: Path) -> Path:
    """Write the checkpoint in a folder of `transformers` to `target` unless it is there."""
    if target.is_file():
        return target
    from safetensors.torch import load_file

    config = json.loads((model / "config.json").read_text())
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(model.glob("*.safetensors")):
        weights |= load_file(path)
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        write_file(file, metadata(config), entries(weights, config))
    return partial.rename(target)


def metadata(config: dict[str, Any]) -> dict[str, str | int | float]:
    """The metadata of a Llama for llama.cpp, without a vocabulary: prompts are token ids."""
    heads = config["num_attention_heads"]
    return {
        "general.architecture": "llama",
        "general.file_type": _MOSTLY_BF16,
        "general.alignment": ALIGNMENT,
        "llama.vocab_size": config["vocab_size"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.dimension_count": config["hidden_size"] // heads,
        "llama.rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "tokenizer.ggml.model": "no_vocab",
    }


def entries(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> list[GgufTensor]:
    """The tensors under llama.cpp's names; norms in float32. Tied embeddings are written once."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = []
    for name, tensor in weights.items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        projection = name.split(".")[-2]
        if projection in heads:
            tensor = interleave(tensor, heads[projection])
        kept = tensor.float() if tensor.ndim == 1 else tensor.bfloat16()
        found.append(GgufTensor(tensor_name(name), kept.contiguous()))
    return found


def tensor_name(name: str) -> str:
    """llama.cpp's name for a tensor of `transformers`; KeyError where it has none."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, inner = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_LAYER[inner]}.weight"


def interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from two halves, as `transformers` rotates them, to adjacent pairs."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_file(
    file: BinaryIO, values: dict[str, str | int | float], tensors: Iterable[GgufTensor]
) -> None:
    """Header, metadata, tensor list, then the tensors, each aligned."""
    tensors = list(tensors)
    file.write(_MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(values)))
    for key, value in values.items():
        file.write(_string(key) + _value(value))
    offset = 0
    for entry in tensors:
        shape = entry.tensor.shape[::-1]
        file.write(_string(entry.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        file.write(struct.pack("<IQ", _TYPES[entry.tensor.dtype], offset))
        offset += entry.bytes + -entry.bytes % ALIGNMENT
    for entry in tensors:
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(entry.tensor.view(torch.uint8).numpy().tobytes())
    file.write(bytes(-file.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    return struct.pack("<If", _FLOAT32, value)
