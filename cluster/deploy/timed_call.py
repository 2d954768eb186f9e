"""Calls of Ray Serve with a deadline: a call waits for ever where Serve's controller is frozen."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_POLL_S = 0.2
R = TypeVar("R")


def timed(
    call: Callable[[], R], timeout_s: float, meanwhile: Callable[[], None] | None = None
) -> R:
    """What `call` returns or raises, on a thread of its own.

    `meanwhile` is called often until then, on this thread. Raises TimeoutError after `timeout_s`;
    the call then goes on by itself.
    """
    results: queue.SimpleQueue[tuple[R] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(),))
        except BaseException as error:
            results.put(error)

    threading.Thread(target=run, name="call of Serve", daemon=True).start()
    ends_s = time.monotonic() + timeout_s
    while (left_s := ends_s - time.monotonic()) > 0:
        if meanwhile is not None:
            meanwhile()
        try:
            result = results.get(timeout=min(_POLL_S, left_s))
        except queue.Empty:
            continue
        if isinstance(result, BaseException):
            raise result
        return result[0]
    raise TimeoutError(f"no answer within {timeout_s:g} s")
