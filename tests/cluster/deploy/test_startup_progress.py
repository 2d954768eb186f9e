"""What `tandem serve` shows of replicas that start: lines in a pipe, bars in a terminal."""

from __future__ import annotations

import io
import os
import pty
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from cluster.deploy import startup_progress
from cluster.deploy.startup_progress import StartupProgress
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


def test_a_terminal_gets_bars_that_vanish_and_lines_above_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(startup_progress, "POLL_S", 0.0)
    told = Told()
    main, terminal = pty.openpty()
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # the terminal is closed, once all is read
            while True:
                shown.extend(os.read(main, 1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(terminal, "w") as out:
        progress = StartupProgress(out)
        with progress.following(told.look):
            told.replicas = [replace(READS, id=f"[decode#{number}]") for number in range(20)]
            progress.replicas({})
            progress.say("a [line] between")
            told.replicas = [replace(A, stage=READY, weights_bytes=10**9, weights_s=2.0)]
        progress.say("ready")
    reader.join(30)
    os.close(main)
    text = shown.decode()
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
