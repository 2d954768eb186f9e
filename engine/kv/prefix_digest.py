"""What is in a KV block, as a digest: of its own tokens and of everything before them.

    digest_0 = H(salt)        digest_i = H(digest_(i-1) | token ids of block i)

The salt is the tenant with the model and its KV layout, so equal digests mean the same tenant, the
same weights, and the same tokens from the prompt's first to the block's last. H is BLAKE2b (RFC
7693), and a block has a fixed number of tokens, so nobody can construct another text with the same
digest. The chaining is that of vLLM's prefix cache. Pure.
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
    """Everything that decides what the bytes of a block mean, the weights among it."""
    return json.dumps(asdict(layout), sort_keys=True)


def digest_of(layout: KvLayout) -> str:
    """The identity in 32 characters: replicas of the same one may exchange blocks."""
    return _hash(identity_of(layout).encode()).hex()[:32]


class Chain:
    """The digests of a sequence's full blocks; they grow with it and are never made twice."""

    __slots__ = ("_block_size", "_format", "_last", "digests")

    def __init__(self, tenant: str, identity: str, block_size: int) -> None:
        self.digests: list[bytes] = []
        self._block_size = block_size
        self._format = f"<{block_size}I"
        self._last = _salt(tenant, identity)

    def follow(self, tokens: Sequence[int], count: int) -> None:
        """Go on over the blocks that the first `count` tokens fill.

        The tokens before are those of the calls before. ValueError for fewer than `count` tokens.
        """
        if count > len(tokens):
            raise ValueError(f"{count} tokens asked for, {len(tokens)} given")
        size = self._block_size
        for start in range(len(self.digests) * size, count // size * size, size):
            block = struct.pack(self._format, *tokens[start : start + size])
            self._last = _hash(self._last + block)
            self.digests.append(self._last)

    def fork(self) -> Chain:
        """A chain that begins like this one and goes on by itself."""
        other = copy(self)
        other.digests = list(self.digests)
        return other


@lru_cache(maxsize=256)
def _salt(tenant: str, identity: str) -> bytes:
    return _hash(json.dumps([tenant, identity]).encode())


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, person=b"tandem.prefix").digest()
