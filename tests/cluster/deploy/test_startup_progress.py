"""What `tandem serve` shows of replicas that start: lines in a pipe, bars in a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TextIO

import pytest

from cluster.deploy import startup_progress
from cluster.deploy.startup_progress import DeploymentState, StartupProgress
from cluster.discovery.starting_replicas import READY, StartingReplica

A = StartingReplica("decode#a", "decode", "import")
READS = replace(
    A, stage="weights", done=42 * 10**9, total=140 * 10**9, unit="bytes", rate=1.2e9, left_s=82.0
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(startup_progress, "time", clock)
    return clock


class Told:
    """What replicas say."""

    def __init__(self) -> None:
        self.replicas: Sequence[StartingReplica] = ()

    def look(self) -> Sequence[StartingReplica]:
        return self.replicas


def test_a_pipe_gets_a_line_for_each_change_and_now_and_then(clock: Clock) -> None:
    out, told = io.StringIO(), Told()
    progress = StartupProgress(out)
    with progress.following(told.look):
        for second in range(31):
            clock.now = 100.0 + second
            told.replicas = [A if second < 2 else replace(READS, done=(40 + second) * 10**9)]
            progress.replicas({})
        told.replicas = [replace(A, stage=READY, weights_bytes=140 * 10**9, weights_s=98.1)]
    assert out.getvalue().splitlines() == [
        "   0.0 s  decode#a: import",
        "   2.0 s  decode#a: weights, 42.0 GB of 140 GB, 1.20 GB/s, about 82 s left",
        "  12.0 s  decode#a: weights, 52.0 GB of 140 GB, 1.20 GB/s, about 82 s left",
        "  22.0 s  decode#a: weights, 62.0 GB of 140 GB, 1.20 GB/s, about 82 s left",
        "  30.0 s  decode#a: weights, 140 GB in 98.1 s",
    ]


def test_a_pipe_hears_now_and_then_how_many_are_ready_while_none_says_more(clock: Clock) -> None:
    out, told = io.StringIO(), Told()
    progress = StartupProgress(out)
    with progress.following(told.look):
        for second in range(22):
            clock.now = 100.0 + second
            told.replicas = [A] if second == 5 else []
            running = 1 if second > 8 else 0
            progress.replicas({"router": DeploymentState("router", 3, running, "UPDATING")})
    assert out.getvalue().splitlines() == [
        "   0.0 s  0 of 3 ready",
        "   5.0 s  decode#a: import",
        "   9.0 s  router 1/3",
        "   9.0 s  1 of 3 ready",
        "  19.0 s  1 of 3 ready",
    ]


def test_the_lines_of_many_replicas_are_bounded_and_each_gets_its_turn(clock: Clock) -> None:
    out, told = io.StringIO(), Told()
    progress = StartupProgress(out)
    told.replicas = [replace(A, id=f"decode#{number:02}") for number in range(20)]
    with progress.following(told.look):
        for half_second in range(10):
            clock.now = 100.0 + half_second / 2
            before = out.getvalue().count("\n")
            progress.replicas({})
            progress.replicas({})  # too early for another look
            assert out.getvalue().count("\n") - before <= 4
    assert out.getvalue().count("import") == 20
    assert all(f"#{number:02}:" in out.getvalue() for number in range(20))


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A terminal, and what it was shown once its file is closed."""
    monkeypatch.setenv("TERM", "xterm")
    main, end = pty.openpty()
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # the terminal is closed, once all is read
            while True:
                shown.extend(os.read(main, 1 << 16))

    def text() -> str:
        reader.join(30)
        return shown.decode()

    reader = threading.Thread(target=read)
    reader.start()
    out = os.fdopen(end, "w")
    yield out, text
    out.close()
    reader.join(30)
    os.close(main)


def test_a_stage_under_way_is_seen_and_stays_as_a_line_once_it_has_ended(
    terminal: tuple[TextIO, Callable[[], str]],
) -> None:
    out, shown = terminal
    with out:
        progress = StartupProgress(out)
        with progress.doing("ray"):
            progress.say("a word of Ray")
        with suppress(KeyboardInterrupt), progress.doing("serve"):
            raise KeyboardInterrupt
    text = shown()
    assert re.search(r"ray .*━ *.* 0 s", text) and "a word of Ray\r\n" in text
    assert re.search(r" \d\.\d s  ray\r\n", text) and "s  serve" not in text
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_a_pipe_gets_a_stage_once_it_has_ended(clock: Clock) -> None:
    out = io.StringIO()
    with StartupProgress(out).doing("ray"):
        clock.now += 5
        assert not out.getvalue()
    assert out.getvalue() == "   5.0 s  ray\n"


def test_a_terminal_gets_bars_that_vanish_and_lines_above_them(
    terminal: tuple[TextIO, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup_progress, "POLL_S", 0.0)
    told = Told()
    out, shown = terminal
    with out:
        progress = StartupProgress(out)
        with progress.following(told.look):
            told.replicas = [replace(READS, id=f"[decode#{number}]") for number in range(20)]
            progress.replicas({"decode": DeploymentState("decode", 21, 1, "UPDATING")})
            progress.say("a [line] between")
            told.replicas = [replace(A, stage=READY, weights_bytes=10**9, weights_s=2.0)]
        progress.say("ready")
    text = shown()
    assert "all" in text and "1 of 21 ready" in text
    assert "[decode#0]" in text and "42.0 GB of 140 GB" in text and "4 more" in text
    assert "[decode#16]" not in text
    assert "a [line] between" in text
    assert "decode#a: weights, 1.00 GB in 2.0 s" in text
    assert text.rstrip().endswith("ready")


def test_a_failure_ends_the_showing(clock: Clock) -> None:
    out, told = io.StringIO(), Told()
    progress = StartupProgress(out)
    told.replicas = [READS]
    with pytest.raises(ValueError, match="cut short"), progress.following(told.look):
        progress.replicas({})
        raise ValueError("model.safetensors is cut short")
    clock.now += 60
    progress.replicas({})
    assert len(out.getvalue().splitlines()) == 1
