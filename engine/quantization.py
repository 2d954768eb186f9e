"""Which quantised weights can be served, from config.json alone: FP8 (E4M3) of weights and inputs.

Any other quantisation is refused by name. `engine/fp8/` computes with FP8 weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModel

# The sections in which quantisers describe what they did.
_SECTIONS = ("quantization_config", "compression_config")
# Loading brings these weights back to bfloat16 (engine/weights/expert_tensors.py).
_READABLE = frozenset({"mxfp4"})
_NAMES = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FBGEMM's FP8",
    "compressed-tensors": "compressed-tensors",
}
_BLOCK = [128, 128]


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """The name of a quantisation that cannot be served; None where the weights can be read."""
    for method, section in _sections(config):
        if method in _READABLE:
            return None
        name = _NAMES.get(method, method or "a method without a name")
        if method not in ("fp8", "compressed-tensors"):
            return name
        reason = _why_not_fp8(section) if method == "fp8" else _why_not_compressed(section)
        return None if reason is None else f"{name}, {reason}"
    return None


def has_fp8_weights(config: Mapping[str, Any]) -> bool:
    """Whether a config that is not refused tells of FP8 weights."""
    return any(method not in _READABLE for method, _ in _sections(config))


def refuse_quantised(config_file: Path, model: str) -> None:
    """Raise UnsupportedModel if the weights of that config.json, of that model, cannot be read."""
    try:
        config = json.loads(config_file.read_text())
    except ValueError:
        return  # what reads the whole config says what is wrong with it
    name = quantisation_of(config) if isinstance(config, Mapping) else None
    if name is not None:
        raise UnsupportedModel(
            f"model {model}: its weights are quantised ({name}), which is not supported; "
            "serve its bfloat16, float16 or FP8 weights"
        )


def _sections(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The methods in small letters, each with its section; "" for a method without a name."""
    found = []
    for part in (config, config.get("text_config")):
        for name in _SECTIONS:
            section = part.get(name) if isinstance(part, Mapping) else None
            if not isinstance(section, Mapping):
                continue
            method = str(section.get("quant_method") or "").lower()
            if not method and (section.get("load_in_4bit") or section.get("load_in_8bit")):
                method = "bitsandbytes"
            found.append((method, section))
    return found


def _why_not_fp8(section: Mapping[str, Any]) -> str | None:
    """See https://huggingface.co/docs/transformers/quantization/finegrained_fp8."""
    block = section.get("weight_block_size")
    if block is not None and list(block) != _BLOCK:
        return f"weight_block_size {block} (128 by 128 is supported)"
    if (scheme := section.get("activation_scheme", "dynamic")) not in ("dynamic", "static"):
        return f"activation_scheme {scheme}"
    if (form := section.get("fmt", "e4m3")) != "e4m3":
        return f"fmt {form} (e4m3 is supported)"
    return None


def _why_not_compressed(section: Mapping[str, Any]) -> str | None:
    """See https://github.com/vllm-project/compressed-tensors, quant_scheme.py."""
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return "without config_groups"
    for group in groups.values():
        form = group.get("format") or section.get("format")
        if form != "float-quantized":
            return f"format {form} (float-quantized is supported)"
        weights, inputs = group.get("weights") or {}, group.get("input_activations")
        if not _is_e4m3(weights):
            return f"weights of type {weights.get('type')} in {weights.get('num_bits')} bits"
        strategy = weights.get("strategy")
        if strategy not in ("tensor", "channel", "block"):
            return f"weights by {strategy} (tensor, channel and block are supported)"
        if strategy == "block" and list(weights.get("block_structure") or ()) != _BLOCK:
            return f"block_structure {weights.get('block_structure')} (128 by 128 is supported)"
        if inputs is None:
            return "weights alone (W8A16)"
        if not _is_e4m3(inputs) or group.get("output_activations") is not None:
            return "activations that are not FP8 inputs"
        if strategy != "block" and inputs.get("strategy") not in ("tensor", "token"):
            return f"inputs by {inputs.get('strategy')} (tensor and token are supported)"
    if (sparsity := (section.get("sparsity_config") or {}).get("format", "dense")) != "dense":
        return f"sparse weights ({sparsity})"
    return None


def _is_e4m3(numbers: Mapping[str, Any]) -> bool:
    kind = (numbers.get("type"), numbers.get("num_bits"), numbers.get("symmetric", True))
    return kind == ("float", 8, True)
