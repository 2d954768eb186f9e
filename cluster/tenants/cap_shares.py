"""Shares the caps of tenants between routers, so that all of them together keep a cap. Pure.

Each router has a *limit* of each cap, and admits within it by itself. A few times a second it
publishes what it has *requested*, and what the queued and running requests *want*. It reads the
same of its peers. Both happen in one atomic exchange.

    wants of all ──▶ fair ──▶ target ──┬─ less than the limit: the limit falls, then is published
                                       └─ more: requested; in effect once a later exchange has
                                          shown that all requests are within the cap

Exchanges are serial. If two routers request more, the later one sees the earlier request. So the
limits add up to the cap at most, at every instant. A cap that no router publishes is shared evenly
by all (`among`), so a tenant's first request waits for no exchange.

A router that completes no exchange for `ALONE_S` goes *alone*, with an even share. Its peers count
what it published last for `GONE_S`, which is longer by more than one lost exchange. Running
requests are not taken back. So a router that went alone can exceed a cap: by what it was running
then, or by its even share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

# Bound: how long a router without an exchange keeps its limits, and how long its peers count it.
ALONE_S = 3.0
GONE_S = 6.0
# Bound: how long peers count a router whose lease has ended.
_DEAD_S = 1.0

# A tenant and the name of one of its caps.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CapUse:
    """The use of a cap by a tenant at a router, now and with all its waiting requests."""

    used: int = 0
    wants: int = 0


@dataclass(frozen=True, slots=True)
class PeerCapUse:
    """The published use of caps by a router: `portions` has the requested and wanted amounts.

    Of a cap without a portion the router requests an even share `among` so many routers; 0 means
    no share. `sequence` rises with each exchange. A router that `left` has gone, and publishes this
    for all to read.
    """

    sequence: int = 0
    among: int = 0
    portions: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    left: bool = False

    def requested(self, key: Key, whole: int) -> int:
        """The amount of a cap that the router has requested."""
        found = self.portions.get(key)
        return _even(whole, self.among) if found is None else found[0]

    def wants(self, key: Key) -> int:
        """The amount of a cap that the router's requests would use."""
        found = self.portions.get(key)
        return 0 if found is None else found[1]


class CapShares:
    """One router's limits. `cap` gives the whole of each cap, or None if there is no cap."""

    def __init__(self, router: str, cap: Callable[[Key], int | None]) -> None:
        self.alone = False
        self._router = router
        self._cap = cap
        self._peers: dict[str, PeerCapUse] = {}
        self._changed_s: dict[str, float] = {}
        self._limits: dict[Key, int] = {}
        self._published = PeerCapUse()
        self._uses: Mapping[Key, CapUse] = {}
        # An even share among so many is in effect; 0: of nothing yet.
        self._among = 0
        self._exchanged_s: float | None = None
        self._missed = False

    @property
    def routers(self) -> int:
        """Routers that share the caps, this one included."""
        return 1 + sum(not peer.left for peer in self._peers.values())

    @property
    def settled(self) -> bool:
        """Whether this router has an even share to begin with."""
        return self._among > 0

    @property
    def lacks_share(self) -> bool:
        """Whether an exchange would help a request that waits here or elsewhere."""
        return any(self._unbalanced(key) for key in self._limits)

    def limit(self, key: Key, whole: int) -> int:
        """The most that this router may use of a cap."""
        if self.alone:
            return max(1, _even(whole, self._among))
        found = self._limits.get(key)
        return _even(whole, self._among) if found is None else min(found, whole)

    def publish(self, uses: Mapping[Key, CapUse], turn: int = 0) -> PeerCapUse:
        """The use of caps to publish now. A lower limit is in effect when this returns.

        `turn` chooses the router that gets more of what cannot be shared evenly.
        """
        n, self._uses = self.routers, uses
        if 0 < self._among < n:
            self._among = n
        among = n if self._exchanged_s is not None else 0
        portions: dict[Key, tuple[int, int]] = {}
        for key in {*uses, *self._limits, *self._mentioned()}:
            whole, use = self._cap(key), uses.get(key, CapUse())
            if whole is None:
                continue
            limit = self.limit(key, whole)
            requested = limit if self.alone else self._next(key, whole, use, limit, turn)
            requested = max(use.used, requested)
            self._limits[key] = min(limit, requested)
            even = _even(whole, among)
            if not use.wants and requested == even == self._limits[key] and among == self._among:
                del self._limits[key]
            else:
                portions[key] = requested, use.wants
        self._published = PeerCapUse(self._published.sequence + 1, among, portions)
        return self._published

    def receive(
        self, published: Mapping[str, PeerCapUse], now: float, dead: Collection[str] = ()
    ) -> list[str]:
        """Take the published use of all routers; returns the routers to be forgotten.

        A router in `dead` has no lease, and is forgotten sooner unless it publishes again.
        """
        peers = {name: one for name, one in published.items() if name != self._router}
        gone = self._take(peers, now, dead)
        everyone = [self._published, *self._peers.values()]
        keys = {*self._published.portions, *self._limits, *self._mentioned()}
        wholes = {key: whole for key in keys if (whole := self._cap(key)) is not None}
        before = {key: self.limit(key, whole) for key, whole in wholes.items()}
        if sum(Fraction(1, one.among) for one in everyone if one.among) <= 1:
            self._among = self._published.among or self._among
        for key, whole in wholes.items():
            requested = self._published.requested(key, whole)
            within_cap = sum(one.requested(key, whole) for one in everyone) <= whole
            self._limits[key] = requested if within_cap else min(before[key], requested)
        self._exchanged_s, self.alone, self._missed = now, False, False
        return gone

    def miss(self, now: float) -> None:
        """Note that an exchange failed, or may have failed."""
        if self._exchanged_s is None:
            self._exchanged_s = now
        self._missed = True
        if not self.alone and now - self._exchanged_s > ALONE_S:
            self.alone, self._among = True, self.routers
            self._limits.clear()

    def _take(
        self, peers: Mapping[str, PeerCapUse], now: float, dead: Collection[str]
    ) -> list[str]:
        """Note peers that published something new; after a missed exchange all get more time."""
        for name, one in peers.items():
            known = self._peers.get(name)
            if known is None or known.sequence != one.sequence:
                self._peers[name], self._changed_s[name] = one, now
        if self._missed:
            self._changed_s = dict.fromkeys(self._peers, now)
        gone = [
            name
            for name, since_s in self._changed_s.items()
            if now - since_s > (_DEAD_S if name in dead else GONE_S)
        ]
        for name in gone:
            del self._peers[name], self._changed_s[name]
        return gone

    def _unbalanced(self, key: Key) -> bool:
        """Whether this router may still get more of a cap, or keeps what a peer wants."""
        whole, limit = self._cap(key), self._limits.get(key)
        if whole is None or limit is None:
            return False
        target, use = self._target(key, whole), self._uses.get(key, CapUse())
        if limit < target:
            return limit < use.wants
        wanted = any(peer.wants(key) > peer.requested(key, whole) for peer in self._peers.values())
        return wanted and limit > max(use.used, target)

    def _mentioned(self) -> Iterable[Key]:
        return (key for peer in self._peers.values() for key in peer.portions)

    def _next(self, key: Key, whole: int, use: CapUse, limit: int, turn: int) -> int:
        """The amount to request: less at once if peers want it, more as far as it is free."""
        target = self._target(key, whole, use.wants, turn)
        if target <= limit:
            return target
        taken = sum(peer.requested(key, whole) for peer in self._peers.values())
        return max(limit, min(target, whole - taken))

    def _target(self, key: Key, whole: int, wants: int | None = None, turn: int = 0) -> int:
        mine = self._published.wants(key) if wants is None else wants
        wanted = {name: one.wants(key) for name, one in self._peers.items() if not one.left}
        return fair(whole, {**wanted, self._router: mine}, turn)[self._router]


def fair(whole: int, wants: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Max-min shares by router: small wants in full, the rest evenly, what is left to all evenly.

    What does not divide goes to the first routers, counted from the one whose `turn` it is.
    """
    names = sorted(wants)
    first = turn % len(names)
    pending, left, given = names[first:] + names[:first], whole, dict.fromkeys(names, 0)
    while pending:
        level = left // len(pending)
        small = [name for name in pending if wants[name] <= level]
        if not small:
            break
        for name in small:
            given[name] = wants[name]
            left -= wants[name]
        pending = [name for name in pending if wants[name] > level]
    for position, name in enumerate(pending or names):
        count = len(pending or names)
        given[name] += left // count + (position < left % count if pending else 0)
    return given


def _even(whole: int, among: int) -> int:
    return whole // among if among else 0
