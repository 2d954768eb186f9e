"""The progress of long work, in a pipe and in a terminal."""

from __future__ import annotations

import io
import os
import pty
from contextlib import suppress

import pytest

from cluster.work_progress import LineLimit, WorkProgress, WorkRate, redraws


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


def test_what_was_done_before_counts_for_no_rate():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("batch", 1000, out, clock) as progress:
        for clock.now, done in ((0.0, 900), (10.0, 910)):
            progress.at(done)
    assert out.getvalue().splitlines()[-1] == "batch: 910 of 1000, 10 s, about 90 s to go"


def test_a_detail_is_no_news_and_news_have_a_bound():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("rollout", out=out, clock=clock) as progress:
        for number in range(40):
            clock.now = number / 4
            progress.at(0, "asked" if number % 4 else "starting", f"{number} GB")
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["rollout: 0 s, starting, 0 GB", "rollout: 1 s, asked, 5 GB"]
    assert len(lines) <= 10


def test_a_rate_says_nothing_in_the_first_seconds():
    rate = WorkRate()
    for now, done in ((0.0, 5.0), (1.0, 50.0), (2.9, 60.0)):
        rate.look(done, now)
        assert rate.rate is None and rate.left_s(100) is None
    rate.look(65.0, 3.0)
    assert (rate.rate, rate.left_s(100)) == (20.0, 1.75)
    rate.look(110.0, 4.0)
    assert rate.left_s(100) == 0.0


def test_a_rate_looks_back_so_far_and_keeps_few_looks():
    rate = WorkRate(window_s=30.0)
    for tenth in range(6000):
        now = tenth / 10
        rate.look(100 * min(now, 300.0) + max(0.0, now - 300.0), now)
        if now == 290.0:
            assert rate.rate == pytest.approx(100, rel=0.01)
    assert rate.rate == pytest.approx(1, rel=0.02)


def test_a_limit_lets_news_through_and_then_a_line_now_and_then():
    limit = LineLimit()
    looks = [(0, "a"), (0.5, "b"), (1.2, "b"), (9, "b"), (11.3, "b"), (11.4, "c"), (12.4, "c")]
    assert [limit.due(news, now) for now, news in looks] == [
        *(True, False, True, False, True, False, True)
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
