"""Tandem's configuration for measurements, in process and as a server."""

from __future__ import annotations

from pathlib import Path

import yaml

from engine.config import KvConfig, ModelConfig
from engine.model_description import describe
from engine.runtime.engine import Engine

DTYPE = "bfloat16"
# The peers have no ITL budget. With the default of 60 ms a machine whose steps of 32 streams take
# longer forms smaller batches, and the streams never run all at once.
WIDE = "decode: {itl_budget_ms: 200}\n"
# Keys of the configuration's `model` section beside path and dtype.
MODEL_KEYS: dict[str, object] = {}
BLOCK_SIZE = 16
# Of a server's replica: 2 GiB, as the peers are given.
_SERVER_BLOCKS = 5800


def model_config(folder: Path) -> ModelConfig:
    """The `model` section."""
    return ModelConfig(path=str(folder), dtype=DTYPE, **MODEL_KEYS)  # type: ignore[arg-type]


def load_engine(folder: Path, tokens: int) -> Engine:
    """An engine with KV blocks for that many tokens."""
    config = model_config(folder)
    kv = KvConfig(block_size=BLOCK_SIZE, blocks=-(-tokens // BLOCK_SIZE))
    return Engine.load(describe(config), kv, config, most_tokens=tokens)


def server_config(more: str = "") -> str:
    """The YAML for `tandem serve --config`, with the sections of `more`."""
    # The peers refuse no request, so none is refused here unless `more` says so.
    patient = {"chat": {"ttft_budget_ms": 600_000, "itl_budget_ms": 60_000}}
    sections: dict[str, object] = {"kv": {"blocks": _SERVER_BLOCKS}, "endpoints": patient}
    if MODEL_KEYS:
        sections["model"] = MODEL_KEYS
    return yaml.safe_dump(sections | (yaml.safe_load(more) or {}))
