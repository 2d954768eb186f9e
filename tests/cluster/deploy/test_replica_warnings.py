"""Only warnings of replicas come to the terminal: whole lines, and few of each module."""

from __future__ import annotations

import logging

import pytest

from cluster.deploy import replica_warnings
from cluster.deploy.replica_warnings import MOST_LINES, WINDOW_S, ReplicaWarnings
from cluster.telemetry.logging_setup import LineFormatter
from tests.eventually import wait_until


def line(text: str, level: int = logging.WARNING, name: str = "protos.wire.refusals") -> str:
    """What a replica writes."""
    record = logging.LogRecord(name, level, __file__, 1, text, None, None)
    record.created, record.msecs = 1.8e9, 0
    return LineFormatter("decode#a").format(record)


class Terminal:
    """A replica's file, and what came to the terminal."""

    def __init__(self, folder) -> None:
        self.lines: list[str] = []
        self.file = folder / "worker-a-01000000-7.err"
        self.warnings = ReplicaWarnings(folder, self.lines.append)

    def write(self, *lines: str, end: str = "\n") -> None:
        with self.file.open("a") as file:
            file.write("\n".join(lines) + end)

    def gains(self, *lines: str, at_s: float = 0.0, end: str = "\n") -> list[str]:
        self.write(*lines, end=end)
        self.lines.clear()
        self.warnings.poll(at_s)
        return self.lines


@pytest.fixture
def terminal(tmp_path):
    return Terminal(tmp_path)


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_a_warning_comes_as_it_was_written_and_nothing_else_does(terminal, level) -> None:
    warning = line("connections were refused", level)
    foreign = line("slow", name="serve")
    others = (":actor_name:ServeReplica", line("accepted", logging.INFO), foreign, "Traceback:")
    assert terminal.gains(*others, warning) == [warning]
    assert warning.endswith("connections were refused replica=decode#a")
    assert terminal.gains(line("again")) == [line("again")]


def test_a_flood_is_cut_and_counted_and_hides_no_other_module(terminal, tmp_path) -> None:
    other = line("no step within its deadline", name="engine.step_watch")
    flood = [line(f"refused {number}") for number in range(1000)]
    assert terminal.gains(*flood, other) == [*flood[:MOST_LINES], other]
    assert terminal.gains(line("still"), at_s=WINDOW_S - 1) == []
    note, after = terminal.gains(line("after"), at_s=WINDOW_S)
    assert note == (
        f"{1001 - MOST_LINES} more lines of protos.wire.refusals within {WINDOW_S:g} s: "
        f"all are in {tmp_path}"
    )
    assert after == line("after")


def test_a_line_is_printed_when_its_end_is_there(terminal) -> None:
    whole = line("directory is back")
    assert terminal.gains(whole[:40], end="") == []
    assert terminal.gains(whole[40:]) == [whole]


def test_what_was_there_before_is_not_printed(tmp_path) -> None:
    first = Terminal(tmp_path)
    first.write(line("old"))
    assert Terminal(tmp_path).gains(line("new")) == [line("new")]
    assert first.gains() == [line("old"), line("new")]


def test_a_reading_is_bounded_and_takes_the_newest_lines(terminal, monkeypatch) -> None:
    monkeypatch.setattr(replica_warnings, "_MOST_BYTES", 1024)
    assert terminal.gains("x" * 1_000_000, line("late")) == [line("late")]
    assert terminal.gains("x" * 1_000_000, end="") == []
    assert terminal.gains("", line("later")) == [line("later")]


def test_the_terminal_gets_no_control_characters(terminal) -> None:
    assert terminal.gains(line("from \x1b[2Jme")) == [line("from ?[2Jme")]


def test_a_file_that_began_anew_is_read_from_its_beginning(terminal) -> None:
    assert terminal.gains(*[line("before")] * 3) == [line("before")] * 3
    terminal.file.write_text("")
    assert terminal.gains(line("after")) == [line("after")]


def test_a_long_line_is_cut(terminal) -> None:
    (shown,) = terminal.gains(line("x" * 100_000))
    assert len(shown) < 2100 and shown.endswith("...")


def test_the_last_lines_come_when_it_ends(terminal) -> None:
    terminal.warnings.start()
    terminal.write(line("first"))
    wait_until(lambda: terminal.lines)
    terminal.write(line("last"))
    terminal.warnings.stop()
    assert terminal.lines == [line("first"), line("last")]
