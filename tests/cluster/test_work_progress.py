"""The progress of long work, in a pipe and in a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.work_progress import LineLimit, WorkProgress, WorkRate, redraws, tracked


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_pipe_gets_a_line_now_and_then_with_the_time_left():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("batch", 100, out=out, clock=clock) as progress:
        for second in range(26):
            clock.now = float(second)
            progress.at(2 * second, f"{second} failed")
    assert out.getvalue().splitlines() == [
        "batch: 0 of 100, 0 s, 0 failed",
        "batch: 20 of 100, 10 s, about 40 s left, 10 failed",
        "batch: 40 of 100, 20 s, about 30 s left, 20 failed",
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
    with WorkProgress("batch", 1000, out=out, clock=clock) as progress:
        for clock.now, done in ((0.0, 900), (10.0, 910)):
            progress.at(done)
    assert out.getvalue().splitlines()[-1] == "batch: 910 of 1,000, 10 s, about 90 s left"


def test_a_detail_is_no_news_and_news_have_a_bound():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("rollout", out=out, clock=clock) as progress:
        for number in range(40):
            clock.now = number / 4
            progress.at(0, "asked" if number % 4 else "starting", f"{number} GB")
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["rollout: 0 s, starting, 0 GB", "rollout: 1 s, asked, 5 GB"]
    assert len(lines) <= 10


def test_a_big_number_keeps_its_digits():
    out = io.StringIO()
    with WorkProgress("batch", 12_345_678, out=out, clock=Clock()) as progress:
        progress.at(1_234_567)
    assert out.getvalue() == "batch: 1,234,567 of 12,345,678, 0 s\n"


def test_work_of_so_many_seconds_tells_its_time_once():
    out, clock = io.StringIO(), Clock()
    with WorkProgress("soak", 600, "s", out, clock) as progress:
        for second in range(0, 601, 10):
            clock.now = float(second)
            progress.at(second)
    lines = out.getvalue().splitlines()
    assert lines[0] == "soak: 0 of 600 s"
    assert lines[6] == "soak: 60 of 600 s, about 9 min left"
    assert lines[-2:] == ["soak: 590 of 600 s, about 10 s left", "soak: 600 of 600 s"]


def test_tracked_items_are_counted_and_named(capsys):
    assert [*tracked("router", ["grpc", "http"], str)] == ["grpc", "http"]
    assert capsys.readouterr().err == "router: 0 of 2, 0 s, grpc\n"


def test_a_rate_says_nothing_in_the_first_seconds():
    rate = WorkRate()
    for now, done in ((0.0, 5.0), (1.0, 50.0), (2.9, 60.0)):
        rate.look(done, now)
        assert rate.rate(now) is None and rate.left_s(100, now) is None
    rate.look(65.0, 3.0)
    assert (rate.rate(3.0), rate.left_s(100, 3.0)) == (20.0, 1.75)
    rate.look(110.0, 4.0)
    assert rate.left_s(100, 4.0) == 0.0


def test_a_rate_looks_back_so_far_and_keeps_few_looks():
    rate = WorkRate(window_s=30.0)
    for tenth in range(6000):
        now = tenth / 10
        rate.look(100 * min(now, 300.0) + max(0.0, now - 300.0), now)
        if now == 290.0:
            assert rate.rate(now) == pytest.approx(100, rel=0.01)
    assert rate.rate(now) == pytest.approx(1, rel=0.02)


def test_the_time_left_sinks_until_a_piece_is_late_and_then_rises():
    rate = WorkRate()
    for number in range(4):
        rate.look(number, 10.0 * number)
    left_s = [rate.left_s(10, now) for now in (30.0, 35.0, 40.0, 50.0, 60.0)]
    assert left_s == [70.0, 65.0, 60.0, 75.0, 90.0]
    assert rate.left_s(10, 700.0) is None


@given(
    st.lists(st.floats(1.0, 50.0), min_size=2, max_size=60),
    st.integers(0, 30),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5),
)
def test_the_time_left_is_within_what_the_pieces_took(durations, more, moments):
    """Each piece takes between the least and the most of them, so the rest does, too."""
    rate, now, total = WorkRate(), 0.0, len(durations) + more
    least, most = min(durations), max(durations)
    rate.look(0, now)
    for done, took in enumerate(durations):
        seen: list[tuple[float, float]] = []
        for moment in sorted(moments):
            at_s = now + moment * took
            rate.look(done, at_s)  # a look that finds nothing new
            left_s = rate.left_s(total, at_s)
            if left_s is None:
                assert done == 0 or at_s < 3.0
                continue
            ahead = total - done
            assert (ahead - 1) * least - 1e-6 <= left_s <= ahead * most + 1e-6
            assert all(left_s >= was_s - (at_s - then_s) - 1e-6 for then_s, was_s in seen)
            seen.append((at_s, left_s))
        now += took
        rate.look(done + 1, now)


def test_a_limit_lets_news_through_and_then_a_line_now_and_then():
    limit = LineLimit()
    looks = [(0, "a"), (0.5, "b"), (1.2, "b"), (9, "b"), (11.3, "b"), (11.4, "c"), (12.4, "c")]
    assert [limit.due(news, now) for now, news in looks] == [
        *(True, False, True, False, True, False, True)
    ]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns: its file, and what it was shown once that is closed."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    main, end = pty.openpty()
    out = os.fdopen(end, "w")

    def shown():
        out.close()
        text = ""
        with suppress(OSError):  # the terminal is closed, once all is read
            while True:
                text += os.read(main, 1 << 16).decode()
        return text

    yield out, shown
    out.close()
    os.close(main)


def test_a_terminal_gets_a_bar(terminal):
    out, shown = terminal
    with WorkProgress("[batch]", 10, out=out) as progress:
        progress.at(10, "none failed")
    text = shown()
    assert "[batch]" in text and "10 of 10" in text and "none failed" in text


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_bar_takes_one_line_whatever_is_said(terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out, shown = terminal
    with WorkProgress("failover of a long name that says what it is", 5, out=out) as progress:
        for done in range(6):
            progress.at(done, "the last run: " + "under the fault 12 s, another replica 5 s, " * 3)
    text = shown()
    assert text.count("\n") == 1 and "\x1b[1A" not in text
    printed = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
    assert all(len(line) <= columns - len("^C") for line in re.split(r"[\r\n]+", printed))


def test_work_that_ends_well_is_whole(terminal):
    out, shown = terminal
    with WorkProgress("batch", 10, out=out) as progress:
        progress.at(7, "none failed")
    assert "10 of 10, 0 s, none failed" in shown().rpartition("batch")[2]


def test_work_without_a_total_leaves_nothing_in_a_terminal(terminal):
    out, shown = terminal
    with WorkProgress("rollout", out=out) as progress:
        progress.at(0, "starting")
    assert shown().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_an_interrupted_bar_goes_and_the_cursor_comes_back(terminal):
    out, shown = terminal
    with suppress(KeyboardInterrupt), WorkProgress("batch", 10, out=out) as progress:
        progress.at(3)
        raise KeyboardInterrupt
    text = shown()
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_a_terminal_of_no_colour_gets_none(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out, shown = terminal
    with WorkProgress("batch", 10, out=out) as progress:
        progress.at(3)
    assert not re.search(r"\x1b\[[0-9;]*[34]\d", shown())


def test_what_is_printed_into_a_file_meanwhile_stays_out_of_the_terminal(terminal, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    out, shown = terminal
    with WorkProgress("chaos", 10, out=out) as progress:
        progress.at(3)
        print("run 3, kill")
    assert file.getvalue() == "run 3, kill\n" and "run 3" not in shown()


@pytest.mark.parametrize("term", ["dumb", "DUMB", "unknown"])
def test_a_dumb_terminal_gets_lines(monkeypatch, term):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", term)
    out = Terminal()
    with WorkProgress("batch", 10, out=out) as progress:
        progress.at(5, "none failed")
        assert "5 of 10" in out.getvalue() and not redraws(out)
