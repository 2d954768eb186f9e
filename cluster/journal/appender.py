"""Appends the batches of one router, one after the other.

Each batch has a name, and names the batch before it. Redis forgets that name as soon as another
router changes a stream of this one. A batch behind a name that Redis knows needs no further check.
"""

from __future__ import annotations

import secrets

from cluster.journal.batches import Appended
from cluster.journal.store import JournalStore


class BatchAppender:
    """Appends to streams of the router of that name."""

    def __init__(self, store: JournalStore, router: str) -> None:
        self._store = store
        self._router = router
        self._prefix = secrets.token_hex(8)
        self._batches = 0
        self._last = ""

    @property
    def sure(self) -> bool:
        """Whether the last batch was answered. If not, each stream is to be checked again."""
        return bool(self._last)

    async def append(self, epoch: str, parts: list[bytes]) -> list[Appended] | None:
        """As `JournalStore.append`, under the name of the next batch."""
        last, self._last = self._last, ""
        self._batches += 1
        name = f"{self._prefix}.{self._batches}"
        answers = await self._store.append(self._router, epoch, last, name, parts)
        if answers is not None:
            self._last = name
        return answers
