"""Digests of KV blocks: each covers a block's own tokens and all tokens before them.

    digest_0 = H(salt)        digest_i = H(digest_(i-1) | token ids of block i)

The salt is the tenant with the model and its KV layout. So equal digests mean the same tenant, the
same weights, and the same tokens from the prompt's first to the block's last. H is BLAKE2b (RFC
7693) and a block has a fixed number of tokens, so no other text with the same digest can be
constructed. The chaining is that of vLLM's prefix cache. Pure.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from functools import lru_cache
from hashlib import blake2b

from engine.kv.layout import KvLayout

DEFAULT_TENANT = "default"
DIGEST_BYTES = 32


def identity_of(layout: KvLayout) -> str:
    """The layout and weights that define the meaning of a block's bytes, as JSON."""
    return json.dumps(asdict(layout), sort_keys=True)


def digest_of(layout: KvLayout) -> str:
    """The identity in 32 characters; replicas with the same digest may exchange blocks."""
    return _hash(identity_of(layout).encode()).hex()[:32]


class Chain:
    """The digests of a sequence's full blocks; each is computed once."""

    __slots__ = ("_block_size", "_format", "_last", "digests")

    def __init__(self, tenant: str, identity: str, block_size: int) -> None:
        self.digests: list[bytes] = []
        self._block_size = block_size
        self._format = f"<{block_size}I"
        self._last = _salt(tenant, identity)

    def follow(self, tokens: Sequence[int], count: int) -> None:
        """Add the digests of the blocks that the first `count` tokens fill.

        `tokens` begins with the tokens of the calls before. ValueError if it has fewer than
        `count`.
        """
        if count > len(tokens):
            raise ValueError(f"{count} tokens asked for, {len(tokens)} given")
        size = self._block_size
        for start in range(self.covered, count // size * size, size):
            self._add(tokens[start : start + size])

    @property
    def covered(self) -> int:
        """The number of leading tokens that the digests cover."""
        return len(self.digests) * self._block_size

    def extended(self, tokens: Sequence[int]) -> list[bytes]:
        """The digests of this chain, and of the blocks that more `tokens` fill.

        The first of `tokens` comes behind `covered` tokens. This chain stays as it is.
        """
        other, size = self._fork(), self._block_size
        for start in range(0, len(tokens) // size * size, size):
            other._add(tokens[start : start + size])
        return other.digests

    def _add(self, block: Sequence[int]) -> None:
        self._last = _hash(self._last + struct.pack(self._format, *block))
        self.digests.append(self._last)

    def _fork(self) -> Chain:
        other = copy(self)
        other.digests = list(self.digests)
        return other


@lru_cache(maxsize=256)
def _salt(tenant: str, identity: str) -> bytes:
    return _hash(json.dumps([tenant, identity]).encode())


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, person=b"tandem.prefix").digest()
