"""Refuses models with quantised weights by name, from config.json alone."""

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
    "fbgemm_fp8": "FP8",
    "compressed-tensors": "compressed-tensors",
}


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """The name of the quantisation of these weights; None where they can be read as they are."""
    for part in (config, config.get("text_config")):
        for section in _SECTIONS:
            found = part.get(section) if isinstance(part, Mapping) else None
            if not isinstance(found, Mapping):
                continue
            method = str(found.get("quant_method") or "").lower()
            if not method and (found.get("load_in_4bit") or found.get("load_in_8bit")):
                method = "bitsandbytes"
            if method not in _READABLE:
                return _NAMES.get(method, method or "a method without a name")
    return None


def refuse_quantised(config_file: Path, model: str) -> None:
    """Raise UnsupportedModel if that config.json, of that model, tells of quantised weights."""
    try:
        config = json.loads(config_file.read_text())
    except ValueError:
        return  # what reads the whole config says what is wrong with it
    name = quantisation_of(config) if isinstance(config, Mapping) else None
    if name is not None:
        raise UnsupportedModel(
            f"model {model}: its weights are quantised ({name}), which is not supported; "
            "serve its bfloat16 or float16 weights"
        )
