"""The two tasks that keep the directory and its readers current: heartbeat and watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from cluster.api.event_streams import end
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import Change, ReplicaLoad, ReplicaRecord, ReplicaRole, Roster
from engine.errors import Unavailable

# Bound: the time between two readings of the members.
WATCH_INTERVAL_S = 0.25
# Bound: how often a join and a leave are tried on a busy machine, and the time between two tries.
_JOIN_TRIES = 10
_LEAVE_TRIES = 3
_TRY_AGAIN_S = 0.5

logger = logging.getLogger(__name__)


class LeaseHeartbeat:
    """Renews one replica's lease with its newest load, through any outage of the directory."""

    def __init__(
        self,
        directory: Directory,
        record: ReplicaRecord,
        load: Callable[[], ReplicaLoad],
        interval_s: float = 1.0,
    ) -> None:
        self._directory = directory
        self._record = record
        self._load = load
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._beating = asyncio.Lock()
        self._status = _DirectoryStatus(f"heartbeat of {record.id}")

    @property
    def connected(self) -> bool:
        """Whether the last heartbeat arrived."""
        return self._status.up

    @property
    def directory(self) -> Directory:
        """The directory that has the lease."""
        return self._directory

    @property
    def record(self) -> ReplicaRecord:
        """The record that the heartbeat stores, except for the load."""
        return self._record

    @property
    def running(self) -> bool:
        """Whether the task runs, with or without success."""
        return self._task is not None and not self._task.done()

    async def set_role(self, role: ReplicaRole) -> None:
        """Store this role at once, with a second try, and from now on."""
        self._record = replace(self._record, role=role)
        if not await self.beat():
            await asyncio.sleep(_TRY_AGAIN_S)
            await self.beat()

    async def leave(self) -> None:
        """Store at once, and from now on, that this replica is leaving."""
        self._record = replace(self._record, leaving=True)
        await self.beat()

    def start(self) -> None:
        """Begin to renew the lease, at once."""
        self._task = asyncio.create_task(self._run(), name=f"heartbeat {self._record.id}")

    async def stop(self, *, remove: bool = True) -> None:
        """Stop, and leave the directory if it can be reached. Idempotent."""
        if self._task is None:
            return
        await end([self._task])
        self._task = None
        if remove:
            try:
                await _insist(lambda: self._directory.remove(self._record.id), _LEAVE_TRIES)
            except Unavailable as error:
                logger.info("left without telling the directory", extra={"reason": str(error)})

    async def beat(self) -> bool:
        """Renew the lease once; False if the directory could not be reached.

        Each call to the directory has a connection of its own, so an older record could arrive
        last. So a heartbeat waits for the one before it.
        """
        async with self._beating:
            try:
                await self._directory.renew(replace(self._record, load=self._load()))
            except Unavailable as error:
                self._status.failed(error)
                return False
            self._status.succeeded()
            return True

    async def _run(self) -> None:
        while True:
            try:
                await self.beat()
            except Exception:
                logger.exception(f"a heartbeat of {self._record.id} failed")
            longest_s = longest_pause_s(self._directory)
            await asyncio.sleep(pause_s(self._interval_s, self._status.failures, longest_s))


class DirectoryWatch:
    """A copy of the members, read every `interval_s` and kept through an outage.

    `on_change` is called in the event loop after a reading with a difference.
    """

    def __init__(
        self,
        directory: Directory,
        interval_s: float = WATCH_INTERVAL_S,
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._on_change = on_change
        # A living replica renews within its longest pause; one lease more covers slow answers.
        self._roster = Roster(grace_s=longest_pause_s(directory) + directory.lease_s)
        self._task: asyncio.Task[None] | None = None
        self._status = _DirectoryStatus("watch")

    @property
    def connected(self) -> bool:
        """Whether the last reading succeeded."""
        return self._status.up

    def members(self, role: ReplicaRole | None = None) -> list[ReplicaRecord]:
        """The replicas that take work of that role, or all, as last known; ordered by id."""
        return self._roster.members(role)

    def get(self, replica_id: str) -> ReplicaRecord | None:
        """One replica by id, or None if it is not known."""
        return self._roster.get(replica_id)

    async def start(self) -> None:
        """Read once, then go on reading in a task."""
        await self.refresh()
        self._task = asyncio.create_task(self._run(), name="directory watch")

    async def stop(self) -> None:
        """Stop reading. The copy stays. Idempotent."""
        if self._task is not None:
            await end([self._task])
            self._task = None

    async def refresh(self) -> bool:
        """Read once; False if the directory could not be reached."""
        try:
            census = await self._directory.census()
        except Unavailable as error:
            self._roster.unreadable(time.monotonic())
            self._status.failed(error)
            return False
        self._status.succeeded()
        self._announce(self._roster.update(census, time.monotonic()))
        return True

    def _announce(self, change: Change) -> None:
        for record in change.joined:
            logger.info("replica joined", extra=_fields(record))
        for record in change.lost:
            logger.info("replica left", extra=_fields(record))
        if self._on_change is not None and (change.joined or change.lost):
            try:
                self._on_change(change)
            except Exception:
                logger.exception("a listener to membership changes failed")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.refresh()
            except Exception:
                logger.exception("a reading of the directory failed")


async def join_directory(directory: Directory, record: ReplicaRecord) -> None:
    """Register, with several tries; raises Unavailable if the directory answers none of them."""
    await _insist(lambda: directory.register(record), _JOIN_TRIES)


def pause_s(interval_s: float, failures: int, longest_s: float) -> float:
    """Seconds until the next heartbeat, after so many heartbeats in a row that failed.

    The first pause of an outage is short, so that one lost heartbeat costs no lease. It doubles, up
    to `longest_s`.
    """
    if not failures:
        return interval_s
    return float(min(interval_s * 2.0 ** min(failures - 2, 10), longest_s))


def longest_pause_s(directory: Directory) -> float:
    """The longest time between two heartbeats of a living replica during an outage, in seconds."""
    return directory.lease_s


class _DirectoryStatus:
    """Whether the directory answers; logs once that it is lost and once that it is back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.failures = 0

    @property
    def up(self) -> bool:
        return self.failures == 0

    def failed(self, error: Unavailable) -> None:
        if self.failures == 0:
            logger.warning(f"{self._name}: directory lost", extra={"reason": error.message})
        self.failures += 1

    def succeeded(self) -> None:
        if self.failures:
            logger.warning(f"{self._name}: directory is back", extra={"missed": self.failures})
        self.failures = 0


def _fields(record: ReplicaRecord) -> dict[str, str]:
    return {"replica": record.id, "role": record.role, "address": record.address}


async def _insist(call: Callable[[], Awaitable[None]], tries: int) -> None:
    for _ in range(tries - 1):
        try:
            await call()
        except Unavailable:
            await asyncio.sleep(_TRY_AGAIN_S)
        else:
            return
    await call()
