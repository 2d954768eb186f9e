"""API keys in Redis: hashed as in a file, the same for all routers, changed while they run.

Each entry has a seal of the cluster's secret. So a process that can merely write to Redis can hide
a key, or bring back a removed one, and cannot add any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from cluster.api.event_streams import end
from cluster.api.validation import is_tenant
from cluster.config.router import KEYS_IN_REDIS
from cluster.discovery.redis_directory import Directory
from cluster.discovery.stored_values import StoredKey
from cluster.tenants.api_keys import POLL_S, ApiKeys, FileKeys
from cluster.tenants.hashed_keys import KeyOwner, is_hash
from engine.errors import Unavailable
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# Bound: entries that are passed over are logged so often at most.
_LOG_EVERY_S = 60.0
_PASSED_OVER = "API keys in Redis without a seal are passed over; `tandem keys list` shows them"


def keys_of(
    setting: str | None, directory: Directory, operators: Collection[str] = ()
) -> ApiKeys | None:
    """The keys that `router.api_keys` names; None if requests need no key.

    `operators` are hashes of further operators' keys.
    """
    if setting is None:
        return None
    if setting == KEYS_IN_REDIS:
        return SharedKeys(directory, operators)
    return FileKeys(Path(setting), operators=operators)


class SharedKeys(ApiKeys):
    """The directory's keys. A task reads them again within a second of a change.

    The keys stay as they were through an outage, and also if Redis has lost its data. Keys that are
    missing count as removed only if the version says so.
    """

    def __init__(self, directory: Directory, operators: Collection[str] = ()) -> None:
        super().__init__({}, operators)
        self._directory = directory
        self._version: str | None = None
        self._well = True
        self._passed_over = RareLog(log, _PASSED_OVER, _LOG_EVERY_S)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys, and poll for changes; raises Unavailable."""
        await self._read()
        if not self._owners:
            log.warning("there are no API keys yet: every request is refused")
        self._task = asyncio.create_task(self._run(), name="API keys")

    async def stop(self) -> None:
        """Stop polling. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await end([task])

    async def poll(self) -> None:
        """Read the keys if they changed."""
        try:
            version = await self._directory.api_keys_version()
            if version is None and self._version is not None:
                # The next keys are read, even if their version is the one that was lost.
                self._version = ""
                self._note("Redis has lost them")
                return
            if version != self._version:
                await self._read()
                log.info("the API keys were read again", extra={"keys": len(self._owners)})
        except Unavailable as error:
            self._note(error.message)
            return
        self._well = True

    async def _read(self) -> None:
        self._version, found = await self._directory.api_keys()
        self._owners = _sound(found)
        self._passed_over.note(events=len(found) - len(self._owners))

    def _note(self, reason: str) -> None:
        if self._well:
            log.error("the API keys stay as they were", extra={"reason": reason})
        self._well = False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.poll()
            except Exception:
                log.exception("the API keys could not be read")


def _sound(found: Iterable[StoredKey]) -> dict[str, KeyOwner]:
    """The sealed entries that have a hash and a valid name."""
    return {
        one.digest: KeyOwner(one.owner, one.right)
        for one in found
        if one.sealed and is_tenant(one.owner) and is_hash(one.digest)
    }
