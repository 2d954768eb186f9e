"""How routers share what a tenant may have, so that a cap holds across all of them. Pure.

Each router has a *limit* of each cap, and admits within it by itself. A few times a second it
publishes what it *asks* for and what its requests *want*, and reads the same of its peers. Both
happen in one atomic exchange.

    wants of all ──▶ fair ──▶ target ──┬─ less than the limit: the limit falls, then is published
                                       └─ more: asked for; in effect once an exchange after that
                                          has shown that all that is asked for fits the cap

Exchanges are serial. If two routers ask for more, the later one sees the earlier one. So the limits
add up to the cap at most, at every instant. A cap that no router publishes is shared evenly by all
(`among`), so a tenant's first request waits for no exchange.

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
    """What a tenant uses of a cap at a router, and what it would use with all that waits."""

    used: int = 0
    wants: int = 0


@dataclass(frozen=True, slots=True)
class PeerCapUse:
    """What a router publishes: `portions` has what it asks for and wants, by cap.

    Of a cap without a portion the router asks for an even share `among` so many routers; 0 means
    nothing. `sequence` rises with each exchange. A router that `left` has gone, and publishes this
    for all to read.
    """

    sequence: int = 0
    among: int = 0
    portions: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    left: bool = False

    def asks(self, key: Key, whole: int) -> int:
        """What the router asks for of a cap."""
        found = self.portions.get(key)
        return _even(whole, self.among) if found is None else found[0]

    def wants(self, key: Key) -> int:
        """What the router's requests want of a cap."""
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
    def hurry(self) -> bool:
        """Whether an exchange would help a request that waits here or elsewhere."""
        return any(self._unbalanced(key) for key in self._limits)

    def limit(self, key: Key, whole: int) -> int:
        """The most that this router may use of a cap."""
        if self.alone:
            return max(1, _even(whole, self._among))
        found = self._limits.get(key)
        return _even(whole, self._among) if found is None else min(found, whole)

    def publish(self, uses: Mapping[Key, CapUse], turn: int = 0) -> PeerCapUse:
        """What to publish now. A limit that falls is in effect when this returns.

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
            asks = limit if self.alone else self._next(key, whole, use, limit, turn)
            asks = max(use.used, asks)
            self._limits[key] = min(limit, asks)
            even = _even(whole, among)
            if not use.wants and asks == even == self._limits[key] and among == self._among:
                del self._limits[key]
            else:
                portions[key] = asks, use.wants
        self._published = PeerCapUse(self._published.sequence + 1, among, portions)
        return self._published

    def receive(
        self, published: Mapping[str, PeerCapUse], now: float, dead: Collection[str] = ()
    ) -> list[str]:
        """Take what all routers have published; returns the routers to be forgotten.

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
            asks = self._published.asks(key, whole)
            fits = sum(one.asks(key, whole) for one in everyone) <= whole
            self._limits[key] = asks if fits else min(before[key], asks)
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
        wanted = any(peer.wants(key) > peer.asks(key, whole) for peer in self._peers.values())
        return wanted and limit > max(use.used, target)

    def _mentioned(self) -> Iterable[Key]:
        return (key for peer in self._peers.values() for key in peer.portions)

    def _next(self, key: Key, whole: int, use: CapUse, limit: int, turn: int) -> int:
        """What to ask for: less at once if peers want it, more as far as it is free."""
        target = self._target(key, whole, use.wants, turn)
        if target <= limit:
            return target
        taken = sum(peer.asks(key, whole) for peer in self._peers.values())
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
