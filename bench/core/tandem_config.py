"""How Tandem is configured when it is measured, in process and as a server."""

from __future__ import annotations

from pathlib import Path

import yaml

from engine.config import KvConfig, ModelConfig
from engine.model.loading import describe
from engine.runtime.engine import Engine

DTYPE = "bfloat16"
# The peers have no budget between two tokens. By the default one, 60 ms, a machine on which a step
# of 32 streams takes longer forms smaller batches, and they never run all at once.
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
    """An engine with room for the KV of that many tokens."""
    config = model_config(folder)
    kv = KvConfig(block_size=BLOCK_SIZE, blocks=-(-tokens // BLOCK_SIZE))
    return Engine.load(describe(config), kv, config, most_tokens=tokens)


def server_config(more: str = "") -> str:
    """What `tandem serve --config` reads, beside the flags: YAML, with the sections of `more`."""
    # The peers refuse nothing, so nothing is refused here unless `more` says so.
    patient = {"chat": {"ttft_budget_ms": 600_000, "itl_budget_ms": 60_000}}
    sections: dict[str, object] = {"kv": {"blocks": _SERVER_BLOCKS}, "endpoints": patient}
    if MODEL_KEYS:
        sections["model"] = MODEL_KEYS
    return yaml.safe_dump(sections | (yaml.safe_load(more) or {}))
