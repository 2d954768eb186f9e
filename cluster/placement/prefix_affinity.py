"""A router's knowledge of the prefixes in each replica's cache. Pure.

Replicas report nothing of their caches. The router remembers the digests of the prompts that it
placed there itself (`engine/kv/prefix_digest.py`). They may be out of date, which costs time and
never correctness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class KnownPrefixes:
    """A bounded number of digests for each replica; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, OrderedDict[bytes, None]] = {}

    def learn(self, replica: str, digests: Sequence[bytes], most: int) -> None:
        """The replica was given blocks with these digests; it can hold `most` blocks."""
        known = self._known.setdefault(replica, OrderedDict())
        # Backwards as in the replica's pool, so that the end of a chain is forgotten first.
        for digest in reversed(digests):
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > most:
            known.popitem(last=False)

    def longest(self, replica: str, digests: Sequence[bytes]) -> int:
        """The number of leading digests that the replica was given."""
        known = self._known.get(replica, OrderedDict())
        count = 0
        for digest in digests:
            if digest not in known:
                break
            count += 1
        return count

    def forget(self, living: Iterable[str]) -> None:
        """Drop replicas that are gone."""
        living = set(living)
        self._known = {name: known for name, known in self._known.items() if name in living}
