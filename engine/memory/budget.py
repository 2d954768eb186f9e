"""How many KV blocks fit into a device's memory, beside what else will be there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The bytes of a device once the weights are there.

    `sharing` replicas divide `fraction` of the `free` bytes. `reserved` are the bytes that one
    replica will need beside its KV blocks, by what needs them.
    """

    free: int
    fraction: float
    sharing: int = 1
    reserved: Mapping[str, int] = field(default_factory=dict)

    @property
    def for_blocks(self) -> int:
        """The bytes for one replica's KV blocks; negative where even the rest does not fit."""
        return int(self.free * self.fraction / self.sharing) - sum(self.reserved.values())

    def blocks(self, block_bytes: int, most: int) -> int:
        """The blocks that fit, at most `most`; ConfigError where none does."""
        count = self.for_blocks // block_bytes
        if count < 1:
            raise ConfigError(f"kv: no block of {_mib(block_bytes)} fits: {self}")
        return min(count, most)

    def __str__(self) -> str:
        parts = [f"{_mib(self.free)} free beside the weights", f"{self.fraction:g} of it"]
        if self.sharing > 1:
            parts.append(f"shared by {self.sharing} replicas")
        parts += [f"less {_mib(size)} for {name}" for name, size in self.reserved.items() if size]
        return ", ".join(parts)


def _mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"
