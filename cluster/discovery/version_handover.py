"""How one version of the application gives way to another: who waits for whom.

Serve starts the replicas of a new version beside the old ones and ends an old one when a new one of
its deployment has started; it knows nothing of pools that need each other. So the new ones say that
they have started when all of their version is there, and the old ones stay until nobody needs them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cluster.discovery.heartbeat import LeaseHeartbeat
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import ReplicaRecord, served, whole
from engine.errors import Unavailable

log = logging.getLogger(__name__)

_LOOK_S = 0.1

Condition = Callable[[Sequence[ReplicaRecord]], bool]


def needed(identity: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether a router of these weights has nobody to turn to but replicas that leave.

    For a pool that sleeps nobody is there either way.
    """
    ours = [record for record in members if record.model_identity == identity]
    return any(record.role == "router" for record in ours) and not whole(ours, served(ours))


def unready(own: ReplicaRecord, members: Iterable[ReplicaRecord]) -> bool:
    """Whether a new replica's version is not all there yet, while another version serves.

    All: the pools that have replicas at all. One that sleeps does so in the new version, too.
    """
    staying = [record for record in members if not record.leaving]
    pools = [record for record in staying if record.role != "router"]
    if all(record.kv_identity == own.kv_identity for record in pools):
        return False
    routers = [record for record in staying if record.role == "router"]
    routed = any(record.model_identity == own.model_identity for record in routers)
    own_version = (record for record in pools if record.kv_identity == own.kv_identity)
    return not (routed and whole(own_version, served(pools)))


def elsewhere(router: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether another router serves: this one may wait for its pools before it opens its doors."""
    return any(r.role == "router" and r.id != router and not r.leaving for r in members)


async def take_turn(heartbeat: LeaseHeartbeat, timeout_s: float) -> None:
    """Wait, where another version serves, until this replica's is all there."""
    own = heartbeat.record
    if not await while_so(heartbeat.directory, partial(unready, own), timeout_s):
        log.warning("this version is not all there", extra={"replica": own.id})


async def stay_while_needed(heartbeat: LeaseHeartbeat, timeout_s: float) -> None:
    """Say that this replica leaves, and wait until routers have others to turn to."""
    await heartbeat.leave()
    identity = heartbeat.record.model_identity
    await while_so(heartbeat.directory, partial(needed, identity), timeout_s)


async def sent_to_sleep(heartbeat: LeaseHeartbeat) -> bool:
    """Whether this replica's pool is to have none: the next request wakes it."""
    home = heartbeat.record.home
    try:
        wanted = await heartbeat.directory.wanted()
    except Unavailable:
        return False
    return wanted.get("prefill" if home == "prefill" else "decode") == 0


async def while_so(directory: Directory, condition: Condition, timeout_s: float) -> bool:
    """Wait as long as the condition holds; False where it held for all of the time.

    Where the directory cannot be read nothing holds.
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
        await asyncio.sleep(_LOOK_S)
