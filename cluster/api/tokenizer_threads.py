"""The threads on which prompts are tokenised. Very long texts have one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

# A text of 4 MiB takes seconds. Longer texts than this wait for each other, and no other text does.
LONG_CHARACTERS = 256 * 1024


class TokenizerThreads:
    """So many threads for all texts, and one more for very long texts."""

    def __init__(self, threads: int) -> None:
        self._usual = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer-long")

    async def run(self, characters: int, work: Callable[[], _T]) -> _T:
        """The result of `work` on a text of that length; raises what it raises."""
        threads = self._usual if characters <= LONG_CHARACTERS else self._long
        return await asyncio.get_running_loop().run_in_executor(threads, work)
