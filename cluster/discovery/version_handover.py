"""The version hand-over: one version of the application replaces another.

Serve starts the replicas of a new version beside the old ones, and ends an old replica when a new
one of its deployment has started. Serve does not know that pools need each other. So a new replica
reports that it has started when all of its version is there. An old one stays until no router needs
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import get_args

from cluster.config.schema import TandemConfig
from cluster.discovery.heartbeat import LeaseHeartbeat
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import Pool, ReplicaRecord, served, whole
from engine.errors import Unavailable

log = logging.getLogger(__name__)

# Bound: the time between two readings of the members by a replica that waits for others.
_POLL_S = 0.1

Condition = Callable[[Sequence[ReplicaRecord]], bool]


def needed(identity: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether a router of these weights has only leaving replicas in a pool.

    A pool that sleeps has no replicas either way, and does not count.
    """
    ours = [record for record in members if record.model_identity == identity]
    return any(record.role == "router" for record in ours) and not whole(ours, served(ours))


def unready(own: ReplicaRecord, members: Iterable[ReplicaRecord]) -> bool:
    """Whether a new replica's version is not complete yet, while another version serves.

    A version is complete if it has a router, and replicas in each pool that has replicas now. A
    pool that sleeps also sleeps in the new version.
    """
    staying = [record for record in members if not record.leaving]
    pools = [record for record in staying if record.role != "router"]
    if all(record.kv_identity == own.kv_identity for record in pools):
        return False
    routers = [record for record in staying if record.role == "router"]
    routed = any(record.model_identity == own.model_identity for record in routers)
    own_version = (record for record in pools if record.kv_identity == own.kv_identity)
    return not (routed and whole(own_version, served(pools)))


def there(config: TandemConfig, version: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether the least number of replicas of this version serves in each pool, and a router."""
    own = [record for record in members if record.config == version and not record.leaving]
    counts: dict[Pool, int] = {pool: sum(r.serves(pool) for r in own) for pool in get_args(Pool)}
    routed = any(record.role == "router" for record in own)
    return routed and all(counts[pool] >= n for pool, n in config.least_replicas.items())


def elsewhere(router: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether another router serves, so that this one may wait for its pools before it starts."""
    return any(r.role == "router" and r.id != router and not r.leaving for r in members)


async def wait_for_version(heartbeat: LeaseHeartbeat, timeout_s: float) -> None:
    """Wait until this replica's version is complete, if another version serves."""
    own = heartbeat.record
    if not await wait_while(heartbeat.directory, partial(unready, own), timeout_s):
        log.warning("this version is not complete", extra={"replica": own.id})


async def stay_while_needed(heartbeat: LeaseHeartbeat, timeout_s: float) -> None:
    """Store that this replica leaves, and wait until no router needs it."""
    await heartbeat.leave()
    identity = heartbeat.record.model_identity
    await wait_while(heartbeat.directory, partial(needed, identity), timeout_s)


async def sent_to_sleep(heartbeat: LeaseHeartbeat) -> bool:
    """Whether this replica's pool should have no replica until a request wakes it."""
    home = heartbeat.record.home
    try:
        desired = await heartbeat.directory.desired()
    except Unavailable:
        return False
    return desired.get("prefill" if home == "prefill" else "decode") == 0


async def wait_while(directory: Directory, condition: Condition, timeout_s: float) -> bool:
    """Wait as long as the condition is true; returns False if it was true all the time.

    The wait ends if the directory cannot be read.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            if not condition(await directory.members()):
                return True
        except Unavailable as error:
            log.warning("no longer waited for", extra={"reason": error.message})
            return True
        if time.monotonic() >= until_s:
            return False
        await asyncio.sleep(_POLL_S)
