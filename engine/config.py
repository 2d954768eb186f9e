"""The configuration of the engine: the `model` and `kv` sections.

The sections are plain frozen dataclasses, so this package needs no validation library.
`cluster/config/schema.py` reads them from YAML and forbids unknown keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
ForwardName = Literal["auto", "compact", "transformers"]
OperationsName = Literal["auto", "torch", "cpp", "triton", "flashinfer"]


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` is true; sections check themselves so."""
    if not condition:
        raise ValueError(message)


def is_hub_name(path: str) -> bool:
    """Whether a model path has the form of a name on the hub: owner/model."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not path.endswith("/")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is served, and in which precision.

    `forward` picks the forward: `compact` is Tandem's own for the main families, `transformers` is
    the model's module. `auto` takes the compact forward where there is one. `operations` picks the
    operations of the compact forward. `auto` takes Triton on CUDA, and C++ for bfloat16 on a CPU;
    until the C++ code is built, at the first start, it takes torch. `flashinfer` is Triton with
    FlashInfer's attention.
    """

    path: str = "demo"
    name: str | None = None
    dtype: Dtype = "auto"
    context_tokens: int | None = None
    forward: ForwardName = "auto"
    operations: OperationsName = "auto"

    def __post_init__(self) -> None:
        require(bool(self.path), "path must not be empty")
        require(
            self.context_tokens is None or self.context_tokens >= 2,
            "context_tokens must be at least 2",
        )


@dataclass(frozen=True, slots=True)
class KvConfig:
    """The pool of KV blocks of each replica, and how blocks travel.

    `blocks` fixes the pool's size. Without it a replica uses `memory_fraction` of the free memory,
    at most what it can ever need. The default fraction is 0.9 of a GPU's memory and 0.5 of a
    host's, which other processes need too. A link whose peer is silent for `silence_s` is broken.
    `prefix_cache` keeps the KV of finished requests until its blocks are needed. Prefill replicas
    compute the texts in `warm_prefixes` once they serve, so the first prompts that begin with
    these texts find them cached.
    """

    block_size: int = 16
    blocks: int | None = None
    memory_fraction: float | None = None
    # Its names are in kv_transfer/transports/registry.py; cluster/config/schema.py checks them.
    transport: str = "auto"
    parked_fraction: float = 0.5
    lease_s: float = 120.0
    silence_s: float = 1.0
    prefix_cache: bool = True
    warm_prefixes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(1 <= self.block_size <= 1024, "block_size must be between 1 and 1024")
        require(self.blocks is None or self.blocks >= 1, "blocks must be at least 1")
        require(
            self.memory_fraction is None or 0 < self.memory_fraction <= 1,
            "memory_fraction must be in (0, 1]",
        )
        require(0 < self.parked_fraction <= 1, "parked_fraction must be in (0, 1]")
        require(self.lease_s > 0, "lease_s must be positive")
        require(self.silence_s >= 0.5, "silence_s must be at least 0.5")
        require(all(self.warm_prefixes), "warm_prefixes must not hold an empty text")
        require(
            self.prefix_cache or not self.warm_prefixes, "warm_prefixes need prefix_cache: true"
        )
