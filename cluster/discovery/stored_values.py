"""Values of the directory: how they are sealed and read. Another version may have written them."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from cluster.config.router import Right
from cluster.discovery.timed_seal import TimedSeal
from cluster.replica_record import Pool, ReplicaRecord
from engine.rare_log import RareLog
from protos.wire.secret import ClusterSecret

# Subjects of seals: no seal of one subject fits another subject.
_RECORD = "replica record"
_KEY = "API key"
# Bound: unsealed records, and unreadable counts, are logged so often at most.
_LOG_EVERY_S = 60.0

logger = logging.getLogger(__name__)
_unreadable_counts = RareLog(logger, "unreadable counts in the directory", _LOG_EVERY_S)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An entry of the API keys; `digest` is the SHA-256 of the key in hexadecimal digits.

    A process that knows the cluster's secret made a `sealed` entry. Anybody may have made another.
    """

    digest: str
    owner: str
    right: Right
    sealed: bool


class SealedRecords:
    """Replica records as text: a seal, a space, JSON. The seal is bound to the key in Redis."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._seal = TimedSeal(secret)
        message = "records in the directory without a seal of this cluster are not seen"
        self._unsealed = RareLog(logger, message, _LOG_EVERY_S)

    def written(self, key: str, record: ReplicaRecord) -> str:
        """The record as it is stored under that key."""
        text = record.to_json()
        return f"{self._seal.of(_RECORD, key, text)} {text}"

    def read(self, key: str, value: str) -> ReplicaRecord | None:
        """The record; None for a text without a right seal, or that cannot be read."""
        seal, _, text = value.partition(" ")
        if not self._seal.fits(seal, _RECORD, key, text):
            self._unsealed.note()
            return None
        try:
            return ReplicaRecord.from_json(text)
        except ValueError as error:
            logger.warning("unreadable record in the directory", extra={"reason": str(error)})
            return None


def seal_of_key(secret: ClusterSecret, digest: str, owner: str, right: Right) -> str:
    """The seal of an API key. It has no time, because a key holds until it is removed."""
    return secret.sign(_KEY, *(part.encode() for part in (digest, owner, right))).hex()


def stored_keys(
    secret: ClusterSecret, entries: Mapping[Right, Mapping[str, str]], seals: Mapping[str, str]
) -> Iterator[StoredKey]:
    """The entries of each right, from owner by hash, and seal by hash."""
    for right, owners in entries.items():
        for digest, owner in owners.items():
            seal = seal_of_key(secret, digest, owner, right).encode()
            sealed = hmac.compare_digest(seals.get(digest, "").encode(), seal)
            yield StoredKey(digest, owner, right, sealed)


def read_desired(text: str) -> dict[Pool, int]:
    """The numbers of replicas by pool; nothing of a text that cannot be read."""
    try:
        found = json.loads(text)
        return {pool: int(found[pool]) for pool in get_args(Pool) if pool in found}
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        _unreadable_counts.note({"reason": str(error)})
        return {}
