"""How routers share what a tenant may have, so that a cap holds across all of them. Pure.

Each router holds a *limit* of each cap and admits within it by itself. A few times a second it
publishes what it *asks* for and what its requests *want*, and reads the same of the others, both in
one atomic exchange.

    wants of all ──▶ fair ──▶ target ──┬─ less than the limit: the limit falls, and is then said
                                       └─ more: asked for; in effect once an exchange, made after
                                          it was said, showed that all that is asked fits the cap

Exchanges are serial, so of two routers that ask for more the later one sees the earlier: the limits
add up to the cap at most, at every instant. Caps of which nobody says anything are shared evenly by
all (`among`), so a tenant's first request waits for no exchange.

Who hears nothing for `ALONE_S` goes *alone*, with an even share. The others count what it said
last for `GONE_S`, which is longer by more than one lost exchange. Requests that run are not taken
back: what a router was running when it went alone, or its even share, can come on top of a cap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

ALONE_S = 3.0
GONE_S = 6.0
# For how long one counts of which is known that it holds no lease any more.
_DEAD_S = 1.0

# A tenant and the name of a cap of its.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CapUse:
    """What a tenant has of a cap at a router, and what that would be with all that waits."""

    used: int = 0
    wants: int = 0


@dataclass(frozen=True, slots=True)
class PeerCapUse:
    """What a router publishes: `portions` has what it asks for and wants, by cap.

    Of each cap that is not there it asks for an even share `among` so many, 0: for nothing.
    `sequence` rises with each exchange; `left`: it has gone, and this is kept for all to read.
    """

    sequence: int = 0
    among: int = 0
    portions: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    left: bool = False

    def asks(self, key: Key, whole: int) -> int:
        """What it asks for of a cap."""
        found = self.portions.get(key)
        return _even(whole, self.among) if found is None else found[0]

    def wants(self, key: Key) -> int:
        """What its requests want of a cap."""
        found = self.portions.get(key)
        return 0 if found is None else found[1]


class CapShares:
    """One router's limits. `cap` gives the whole of each cap, None where there is none."""

    def __init__(self, router: str, cap: Callable[[Key], int | None]) -> None:
        self.alone = False
        self._router = router
        self._cap = cap
        self._others: dict[str, PeerCapUse] = {}
        self._changed_s: dict[str, float] = {}
        self._limits: dict[Key, int] = {}
        self._said = PeerCapUse()
        self._uses: Mapping[Key, CapUse] = {}
        # An even share among so many is in effect; 0: of nothing yet.
        self._among = 0
        self._heard_s: float | None = None
        self._missed = False

    @property
    def routers(self) -> int:
        """Routers that share, this one included."""
        return 1 + sum(not other.left for other in self._others.values())

    @property
    def settled(self) -> bool:
        """Whether there is an even share to begin with."""
        return self._among > 0

    @property
    def hurry(self) -> bool:
        """Whether an exchange would help a request that waits here or elsewhere."""
        return any(self._short(key) for key in self._limits)

    def limit(self, key: Key, whole: int) -> int:
        """The most that may be used here of a cap."""
        if self.alone:
            return max(1, _even(whole, self._among))
        found = self._limits.get(key)
        return _even(whole, self._among) if found is None else min(found, whole)

    def say(self, uses: Mapping[Key, CapUse], turn: int = 0) -> PeerCapUse:
        """What to publish now; a limit that falls is in effect when this returns.

        Of what cannot be shared evenly, who gets more changes with `turn`.
        """
        n, self._uses = self.routers, uses
        if 0 < self._among < n:
            self._among = n
        among = n if self._heard_s is not None else 0
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
        self._said = PeerCapUse(self._said.sequence + 1, among, portions)
        return self._said

    def hear(
        self, said: Mapping[str, PeerCapUse], now: float, dead: Collection[str] = ()
    ) -> list[str]:
        """What all routers had published when `say` was; returns those to be forgotten.

        Those that are `dead`, by what else is known, are so sooner, unless they say something.
        """
        others = {name: one for name, one in said.items() if name != self._router}
        gone = self._take(others, now, dead)
        everyone = [self._said, *self._others.values()]
        keys = {*self._said.portions, *self._limits, *self._mentioned()}
        wholes = {key: whole for key in keys if (whole := self._cap(key)) is not None}
        before = {key: self.limit(key, whole) for key, whole in wholes.items()}
        if sum(Fraction(1, one.among) for one in everyone if one.among) <= 1:
            self._among = self._said.among or self._among
        for key, whole in wholes.items():
            asks = self._said.asks(key, whole)
            fits = sum(one.asks(key, whole) for one in everyone) <= whole
            self._limits[key] = asks if fits else min(before[key], asks)
        self._heard_s, self.alone, self._missed = now, False, False
        return gone

    def miss(self, now: float) -> None:
        """An exchange failed, or may have."""
        if self._heard_s is None:
            self._heard_s = now
        self._missed = True
        if not self.alone and now - self._heard_s > ALONE_S:
            self.alone, self._among = True, self.routers
            self._limits.clear()

    def _take(
        self, others: Mapping[str, PeerCapUse], now: float, dead: Collection[str]
    ) -> list[str]:
        """Note who said something new; after a missed exchange all have time to do so."""
        for name, one in others.items():
            known = self._others.get(name)
            if known is None or known.sequence != one.sequence:
                self._others[name], self._changed_s[name] = one, now
        if self._missed:
            self._changed_s = dict.fromkeys(self._others, now)
        gone = [
            name
            for name, since_s in self._changed_s.items()
            if now - since_s > (_DEAD_S if name in dead else GONE_S)
        ]
        for name in gone:
            del self._others[name], self._changed_s[name]
        return gone

    def _short(self, key: Key) -> bool:
        """Whether this router is owed more of a cap, or keeps what another wants."""
        whole, limit = self._cap(key), self._limits.get(key)
        if whole is None or limit is None:
            return False
        target, use = self._target(key, whole), self._uses.get(key, CapUse())
        if limit < target:
            return limit < use.wants
        wanted = any(other.wants(key) > other.asks(key, whole) for other in self._others.values())
        return wanted and limit > max(use.used, target)

    def _mentioned(self) -> Iterable[Key]:
        return (key for other in self._others.values() for key in other.portions)

    def _next(self, key: Key, whole: int, use: CapUse, limit: int, turn: int) -> int:
        """What to ask for: less at once where others want it, more where it is free."""
        target = self._target(key, whole, use.wants, turn)
        if target <= limit:
            return target
        taken = sum(other.asks(key, whole) for other in self._others.values())
        return max(limit, min(target, whole - taken))

    def _target(self, key: Key, whole: int, wants: int | None = None, turn: int = 0) -> int:
        mine = self._said.wants(key) if wants is None else wants
        wanted = {name: one.wants(key) for name, one in self._others.items() if not one.left}
        return fair(whole, {**wanted, self._router: mine}, turn)[self._router]


def fair(whole: int, wants: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Max-min shares: small wants in full, the rest evenly, what is left to all evenly.

    What does not divide goes to those that come first, from the one whose `turn` it is.
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
    for place, name in enumerate(pending or names):
        count = len(pending or names)
        given[name] += left // count + (place < left % count if pending else 0)
    return given


def _even(whole: int, among: int) -> int:
    return whole // among if among else 0
