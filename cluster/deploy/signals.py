"""The signals that end `tandem serve`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupted(KeyboardInterrupt):
    """A signal that ends `tandem serve`.

    Where a plain KeyboardInterrupt passes the exec of a string, as in some imports, Python ends by
    SIGINT even if the exception was caught.
    """


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def listen_to_signals() -> None:
    """Have each ending signal raise a KeyboardInterrupt in the main thread."""
    # SIGINT is set too, because a script starts its background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _as_interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _as_interrupt)


@contextlib.contextmanager
def signals_delayed() -> Iterator[None]:
    """Act on signals at the end of the block. Processes started in the block would inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
