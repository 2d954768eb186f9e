"""Seals of the journal: a process that can merely write to Redis forges nothing in it.

A request's seal is the HMAC of the cluster's secret, bound to the stream's name in Redis. So the
request cannot be moved to another stream, and it names its tenant itself. An entry's seal is a
keyed BLAKE2b (RFC 7693), with a key of the stream that the secret gives. It is bound to the entry's
sequence number and to the fence of its writer.

    request   HMAC-SHA256 (32 bytes) | JournaledRequest
    entry     fence (4 bytes) | BLAKE2b (16 bytes) | JournaledEvent
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from google.protobuf.message import DecodeError

from cluster.journal.keys import JournalKeys
from protos.journal_pb2 import JournaledRequest
from protos.wire.secret import ClusterSecret

# Subjects of seals: no seal of one subject fits another subject.
_REQUEST = "journaled request"
_ENTRIES = "journal entries"
_HMAC_BYTES = 32
_FENCE_BYTES = 4
_MAC_BYTES = 16
_LENGTH_BYTES = 4
_HEAD_BYTES = _FENCE_BYTES + _MAC_BYTES
_bound = struct.Struct(">QI").pack
_framed_head = struct.Struct(f">II{_MAC_BYTES}s").pack


class EntrySeal:
    """Seals the entries of one stream, and checks them."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        # Copied for each entry, which costs half of a new one.
        self._keyed = hashlib.blake2b(key=key, digest_size=_MAC_BYTES)

    def framed(self, sequence: int, fence: int, payload: bytes) -> bytes:
        """The entry with that sequence number, written under that fence, as `batches.framed`."""
        keyed = self._keyed.copy()
        keyed.update(_bound(sequence, fence) + payload)
        return _framed_head(_HEAD_BYTES + len(payload), fence, keyed.digest()) + payload

    def opened(self, sequence: int, entry: bytes) -> tuple[int, bytes] | None:
        """The fence and the payload of an entry; None where its seal does not fit."""
        if len(entry) < _HEAD_BYTES:
            return None
        fence, payload = int.from_bytes(entry[:_FENCE_BYTES], "big"), entry[_HEAD_BYTES:]
        if not hmac.compare_digest(entry, self.framed(sequence, fence, payload)[_LENGTH_BYTES:]):
            return None
        return fence, payload


class JournalSeal:
    """Seals the requests of one namespace, and gives the seal of each stream's entries."""

    def __init__(self, secret: ClusterSecret, keys: JournalKeys) -> None:
        self._secret = secret
        self._keys = keys

    def sealed_request(self, stream_id: str, request: JournaledRequest) -> bytes:
        """The request as it is stored for that stream."""
        payload = request.SerializeToString()
        return self._secret.sign(_REQUEST, self._name(stream_id), payload) + payload

    def opened_request(self, stream_id: str, stored: bytes) -> JournaledRequest | None:
        """The request; None where its seal does not fit, or it cannot be read."""
        signature, payload = stored[:_HMAC_BYTES], stored[_HMAC_BYTES:]
        if not self._secret.verify(signature, _REQUEST, self._name(stream_id), payload):
            return None
        try:
            return JournaledRequest.FromString(payload)
        except DecodeError:
            return None

    def entries(self, stream_id: str) -> EntrySeal:
        """The seal of that stream's entries."""
        return EntrySeal(self._secret.sign(_ENTRIES, self._name(stream_id)))

    def _name(self, stream_id: str) -> bytes:
        return self._keys.stream(stream_id).encode()
