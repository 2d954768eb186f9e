"""The configuration of the engine: the `model` and `kv` sections.

The sections are plain frozen dataclasses, so this package needs no validation library.
`cluster/config/schema.py` reads them from YAML and forbids unknown keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvDtype = Literal["auto", "fp8_e4m3"]
ForwardName = Literal["auto", "compact", "transformers"]
ByDevice = Literal["auto"]
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
    """Which model is served, and in which precision."""

    path: str = "demo"
    """A folder, a name on the hub, or `demo`, the bundled model."""
    name: str | None = None
    """The name of the model in the APIs; without it, the name of its folder."""
    dtype: Dtype = "auto"
    """The precision of the weights; `auto` takes the stored precision."""
    context_tokens: int | None = None
    """A smaller context than the model's own."""
    forward: ForwardName = "auto"
    """The forward: `compact` is Tandem's own for Llama, Mistral, Mixtral, Qwen 2 and 3, Qwen3-MoE,
    Phi, Phi 3, Gemma 1 to 3 and gpt-oss; `transformers` is the model's module; `auto` takes the
    first where it can.
    """
    operations: OperationsName = "auto"
    """The operations of the compact forward: `triton` (CUDA), `cpp` (bfloat16 on a CPU, compiled at
    the first start), `torch`, or `flashinfer` (Triton's, with FlashInfer's attention for prompts
    where it is faster, unverified); `auto` takes the fastest that device and model allow.
    """

    step_timeout_s: float = 30.0
    """An engine with work that completes no step, and no slice of a prompt, for so long is stalled:
    its replica gets no work and is replaced. Much longer than the slowest step of a busy CPU.
    """

    def __post_init__(self) -> None:
        require(bool(self.path), "path must not be empty")
        require(self.step_timeout_s > 0, "step_timeout_s must be positive")
        require(
            self.context_tokens is None or self.context_tokens >= 2,
            "context_tokens must be at least 2",
        )


@dataclass(frozen=True, slots=True)
class KvConfig:
    """The pool of KV blocks of each replica, and how blocks travel."""

    block_size: int = 16
    """Tokens per block."""
    dtype: KvDtype = "auto"
    """The precision of keys and values: `auto` is the model's; `fp8_e4m3` takes one byte for a
    number, with the scales that the model stores or 1, and cuts numbers beyond 448 times the scale.
    """
    blocks: int | None = None
    """Blocks per replica; without it, `max_batch` contexts, fewer where memory is short."""
    memory_fraction: float | None = None
    """The part of the free memory that the replicas on a device share; without it, 0.9 of a GPU's
    and 0.5 of a host's.
    """
    # Its names are in kv_transfer/transports/registry.py; cluster/config/schema.py checks them.
    transport: str = "auto"
    """How KV travels between two replicas; `auto` picks a transport for each pair and logs why."""
    parked_fraction: float = 0.5
    """The part of a prefill pool's blocks that may wait to be pulled; beyond it no new prompt
    starts.
    """
    lease_s: float = 120.0
    """How long finished KV waits to be pulled."""
    silence_s: float = 1.0
    """How long the other end of a link may be silent before it counts as dead; more where cores
    are crowded.
    """
    join_timeout_s: float = 20.0
    """How long two replicas may take to open the data channel of a link; NCCL's first one takes
    seconds on a node of many GPUs.
    """
    prefix_cache: bool = True
    """Whether finished requests' KV is kept until its blocks are needed, for prompts of the same
    tenant that begin alike.
    """
    warm_prefixes: tuple[str, ...] = ()
    """Texts that each prefill replica computes for the tenant `default` when it starts."""

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
        require(self.join_timeout_s > 0, "join_timeout_s must be positive")
        require(all(self.warm_prefixes), "warm_prefixes must not hold an empty text")
        require(
            self.prefix_cache or not self.warm_prefixes, "warm_prefixes need prefix_cache: true"
        )
