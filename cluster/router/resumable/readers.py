"""The clients that read resumed streams through one router, within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import Overloaded

_RETRY_S = 1.0


class Readers:
    """Counts readers: at most `most`, and of one tenant at most half of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[str] = Counter()

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Count a reader of that tenant; raises Overloaded where there are too many."""
        if self._of[tenant] >= max(1, self._most // 2) or self._of.total() >= self._most:
            raise Overloaded("too many clients resume streams here", retry_after_s=_RETRY_S)
        self._of[tenant] += 1
        try:
            yield
        finally:
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]
