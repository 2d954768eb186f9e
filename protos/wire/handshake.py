"""The proof of the cluster's secret at the beginning of every internal connection. Pure.

    client → server   `tandem wire 1\\n`, purpose (1 byte), nonce (32 bytes)
    server → client   nonce (32 bytes), proof (32 bytes)
    client → server   proof (32 bytes), and from here on frames in both directions

A proof is the HMAC-SHA256 of its side, the purpose, both nonces and the address that the client
dialled. The address keeps a process on another port from passing the proof on to a real server.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal, get_args

from protos.wire.secret import ClusterSecret

Purpose = Literal["calls", "reports", "control", "link", "peer"]
Side = Literal["client", "server"]

PREFACE = b"tandem wire 1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(PREFACE) + 1 + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
# Bound: how long a connection may take to prove the secret, TLS included.
HANDSHAKE_S = 5.0

_BY_BYTE: dict[bytes, Purpose] = {
    bytes([number]): purpose for number, purpose in enumerate(get_args(Purpose), start=1)
}
_BYTE = {purpose: byte for byte, purpose in _BY_BYTE.items()}


@dataclass(frozen=True, slots=True)
class Transcript:
    """The content that both sides prove; `address` (host:port) is the server's."""

    purpose: Purpose
    address: str
    client_nonce: bytes
    server_nonce: bytes

    def proof(self, secret: ClusterSecret, side: Side) -> bytes:
        """The proof of that side."""
        return secret.sign(f"wire {side}", *self._parts())

    def is_proved(self, secret: ClusterSecret, side: Side, proof: bytes) -> bool:
        """Whether this is the proof of that side."""
        return secret.verify(proof, f"wire {side}", *self._parts())

    def _parts(self) -> tuple[bytes, ...]:
        purpose, address = self.purpose.encode(), self.address.encode()
        return PREFACE, purpose, address, self.client_nonce, self.server_nonce


def new_nonce() -> bytes:
    """A number that no other handshake has."""
    return secrets.token_bytes(NONCE_BYTES)


def hello(purpose: Purpose, nonce: bytes) -> bytes:
    """The client's first message."""
    return PREFACE + _BYTE[purpose] + nonce


def may_become_hello(data: bytes) -> bool:
    """Whether a client's first message may begin with, or be, this data."""
    known = PREFACE.startswith(data[: len(PREFACE)])
    byte = data[len(PREFACE) : len(PREFACE) + 1]
    return known and len(data) <= HELLO_BYTES and (not byte or byte in _BY_BYTE)


def read_hello(data: bytes) -> tuple[Purpose, bytes]:
    """The purpose and the client's nonce, in a whole first message that `may_become_hello`."""
    byte, nonce = data[len(PREFACE) : len(PREFACE) + 1], data[len(PREFACE) + 1 :]
    return _BY_BYTE[byte], nonce
