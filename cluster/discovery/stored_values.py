"""Reads values of the directory, which another version may have written."""

from __future__ import annotations

import json
import logging
from typing import get_args

from cluster.replica_record import Pool, ReplicaRecord

logger = logging.getLogger(__name__)


def read_desired(text: str) -> dict[Pool, int]:
    """The numbers of replicas by pool; nothing of a text that cannot be read."""
    try:
        found = json.loads(text)
        return {pool: int(found[pool]) for pool in get_args(Pool) if pool in found}
    except (ValueError, TypeError) as error:
        logger.warning("unreadable counts in the directory", extra={"reason": str(error)})
        return {}


def read_record(value: str) -> ReplicaRecord | None:
    """The record; None for a text that cannot be read."""
    try:
        return ReplicaRecord.from_json(value)
    except ValueError as error:
        logger.warning("unreadable record in the directory", extra={"reason": str(error)})
        return None
