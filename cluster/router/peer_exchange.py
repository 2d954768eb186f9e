"""The exchange between routers, through the directory: shares of the tenants' caps, and more.

It is a task of its own. No request waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from cluster.api.event_streams import end
from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.discovery.redis_directory import Directory
from cluster.router.canary.routing import CanaryRouting
from cluster.router.peer_state import PeerState
from cluster.telemetry import router_metrics as metrics
from cluster.tenants.cap_shares import GONE_S, CapShares, PeerCapUse
from cluster.tenants.fair_share import FairShare
from cluster.tenants.need import caps_of
from engine.errors import Unavailable
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# The interval of exchanges: usually, while a tenant lacks a share, and while this router is alone
# with nothing to share. A router that starts waits for its share at most until the share of a
# dead router is free.
EVERY_S = 0.2
LACKING_S = 0.05
QUIET_S = 0.5
_START_S = GONE_S + 2.0
_TURN_S = 1.0
# Bound: unreadable states are logged so often at most.
_LOG_EVERY_S = 60.0


class PeerExchange:
    """Keeps the shares and counters of this router current with those of its peers.

    `fairness` and `canaries` are what it keeps current, in the life `generation` of the router.
    `router` is the router's name in this life.
    """

    def __init__(
        self,
        directory: Directory,
        router: str,
        shares: CapShares,
        fairness: FairShare,
        canaries: CanaryRouting | None = None,
        generation: int = 0,
    ) -> None:
        self.generation = generation
        self.fairness = fairness
        self.canaries = canaries or CanaryRouting({})
        self._directory = directory
        self.router = router
        self._shares = shares
        self._task: asyncio.Task[None] | None = None
        self._peers: set[str] = set()
        self._dead: frozenset[str] = frozenset()
        self._charged: Mapping[str, float] = {}
        self._quiet = False
        self._unreadable = RareLog(log, "unreadable states of peers", _LOG_EVERY_S)

    @classmethod
    def of(cls, config: TandemConfig, directory: Directory, router_id: str) -> PeerExchange:
        """The exchange of a new life of that router, with the configured caps and canaries."""
        generation = time.time_ns()
        name = router_name(router_id, generation)
        shares = CapShares(name, caps_of(config.tenants))
        canaries = CanaryRouting(config.endpoints, config_version(config))
        fairness = FairShare(config.tenants, shares)
        return cls(directory, name, shares, fairness, canaries, generation)

    async def start(self) -> None:
        """Get this router's shares within a bounded time, and keep them current."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while not self._shares.settled:
                    await self._once_at_the_start()
                    if not self._shares.settled:
                        await asyncio.sleep(LACKING_S)
        self._dead = frozenset()
        self._task = asyncio.create_task(self._run(), name=f"exchange of {self.router}")

    async def stop(self) -> None:
        """Stop, and give up the shares unless the directory cannot be reached. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        await end([task])
        farewell = PeerState(PeerCapUse(time.time_ns(), left=True))
        with suppress(Unavailable):
            await self._directory.exchange(self.router, farewell.to_json())

    async def once(self) -> bool:
        """Exchange states once; returns False if the directory could not be reached."""
        uses, charged, here = self.fairness.publish()
        self._quiet = not uses and charged == self._charged
        self._charged = charged
        cap_use = self._shares.publish(uses, int(time.time() / _TURN_S))
        state = PeerState(cap_use, charged, here, self.canaries.publish())
        alone, routers = self._shares.alone, self._shares.routers
        try:
            texts = await self._directory.exchange(self.router, state.to_json())
        except Unavailable as error:
            self._shares.miss(time.monotonic())
            if self._shares.alone and not alone:
                fields = {"reason": error.message, "routers": routers}
                log.warning("caps are no longer shared: an even share of each", extra=fields)
                self.fairness.receive({}, ())
        else:
            await self._receive(texts)
            if alone:
                log.warning("caps are shared again", extra={"routers": self._shares.routers})
        metrics.SHARING.set(not self._shares.alone)
        metrics.ROUTERS.set(self._shares.routers)
        return not self._shares.alone

    async def _once_at_the_start(self) -> None:
        """Exchange states once. A router without a lease in the directory has died."""
        await self.once()
        with suppress(Unavailable):
            members = await self._directory.members()
            living = {router_name(record.id, record.generation) for record in members}
            self._dead = frozenset(self._peers - living)

    async def _receive(self, texts: Mapping[str, str]) -> None:
        peers = {name: one for name, text in texts.items() if (one := self._read(name, text))}
        cap_uses = {name: one.cap_use for name, one in peers.items()}
        gone = self._shares.receive(cap_uses, time.monotonic(), self._dead)
        self._peers = set(peers)
        others = {
            name: one
            for name, one in peers.items()
            if name not in (self.router, *gone) and not one.cap_use.left
        }
        here = {tenant for one in others.values() for tenant in one.here}
        self.fairness.receive({name: one.charged for name, one in others.items()}, here)
        for one in others.values():
            self.canaries.receive(one.rolled_back)
        if gone:
            log.info("routers no longer share", extra={"gone": sorted(gone)})
            with suppress(Unavailable):
                await self._directory.forget_peer_states(gone)

    def _read(self, router: str, text: str) -> PeerState | None:
        try:
            return PeerState.from_json(text)
        except ValueError as error:
            self._unreadable.note({"router": router[:64], "reason": str(error)})
            return None

    @property
    def pause_s(self) -> float:
        """Seconds from now until the next exchange."""
        if self._shares.lacks_share:
            return LACKING_S
        return QUIET_S if self._quiet and self._shares.routers == 1 else EVERY_S

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s)
            try:
                await self.once()
            except Exception:
                log.exception("the routers' exchange failed")


def router_name(router_id: str, generation: int) -> str:
    """The name of one life of a router."""
    return f"{router_id}@{generation}"
