"""Opens the links of a replica before its first requests.

A first link between two GPUs takes seconds to open, and the stream that needs it would stall behind
its first token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from cluster.discovery.heartbeat import LeaseHeartbeat
from cluster.replica_record import ReplicaRecord
from engine.errors import Unavailable
from kv_transfer.receiver import Peer

log = logging.getLogger(__name__)

# Bound: the time between two looks at the directory.
_POLL_S = 2.0


class OpensLinks(Protocol):
    """The receiving side of a replica's transfers, as far as this needs it."""

    async def open_ahead(self, peer: Peer) -> bool:
        """See KvReceiver."""
        ...


def senders_for(own: ReplicaRecord, members: Iterable[ReplicaRecord]) -> list[ReplicaRecord]:
    """The replicas whose KV a decode replica will get; none for other roles."""
    if own.role != "decode":
        return []
    return [
        record
        for record in members
        if record.role == "prefill" and record.kv_identity == own.kv_identity and not record.leaving
    ]


async def open_links_ahead(
    heartbeat: LeaseHeartbeat, receiver: OpensLinks, poll_s: float = _POLL_S
) -> None:
    """Open a link to each sender that appears, one after the other, once in each of its lives.

    A link that breaks later is opened again by the next request that needs it. Never ends.
    """
    tried: set[tuple[str, int]] = set()
    while True:
        try:
            members = await heartbeat.directory.members()
        except Unavailable:
            members = []
        senders = {(one.id, one.generation): one for one in senders_for(heartbeat.record, members)}
        if members:
            tried &= senders.keys()
        for life, record in senders.items():
            if life not in tried:
                tried.add(life)
                opened = await receiver.open_ahead(Peer(record.id, record.address))
                log.info("link ahead of requests", extra={"to": record.id, "opened": opened})
        await asyncio.sleep(poll_s)
