"""The progress of long work, in a pipe and in a terminal."""

from __future__ import annotations

import io
import os
import pty
from contextlib import suppress

import pytest

from cluster.work_progress import WorkProgress, redraws


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_pipe_gets_a_line_now_and_then_with_the_time_left():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("batch", 100, out, clock) as progress:
        for second in range(26):
            clock.now = float(second)
            progress.at(2 * second, f"{second} failed")
    assert out.getvalue().splitlines() == [
        "batch: 0 of 100, 0 s, 0 failed",
        "batch: 20 of 100, 10 s, about 40 s to go, 10 failed",
        "batch: 40 of 100, 20 s, about 30 s to go, 20 failed",
    ]


def test_without_a_total_each_news_is_told():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("rollout", out=out, clock=clock) as progress:
        for clock.now, state in ((0, "asked"), (1, "asked"), (2, "starting"), (13, "starting")):
            progress.at(0, state)
    assert out.getvalue().splitlines() == [
        "rollout: 0 s, asked",
        "rollout: 2 s, starting",
        "rollout: 13 s, starting",
    ]


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as out, WorkProgress("[batch]", 10, out) as progress:
        progress.at(10, "none failed")
    shown = ""
    with suppress(OSError):  # the terminal is closed, once all is read
        while True:
            shown += os.read(main, 1 << 16).decode()
    os.close(main)
    assert "[batch]" in shown and "10/10" in shown and "none failed" in shown


@pytest.mark.parametrize("term", ["dumb", "DUMB", "unknown"])
def test_a_dumb_terminal_gets_lines(monkeypatch, term):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", term)
    out = Terminal()
    with WorkProgress("batch", 10, out) as progress:
        progress.at(5, "none failed")
        assert "5 of 10" in out.getvalue() and not redraws(out)
