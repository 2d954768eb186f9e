"""What a replica says of its start, to the directory and in its log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from cluster.discovery.starting_replicas import StartingReplica
from cluster.replica import start_report
from cluster.replica.start_report import StartReport
from engine import startup_timer
from engine.errors import Unavailable, UnsupportedModel
from engine.startup_timer import StartupTimer
from tests.eventually import eventually

GB = 10**9


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Board:
    """In place of the directory; while it is `lost`, it takes nothing."""

    def __init__(self) -> None:
        self.said: list[StartingReplica] = []
        self.withdrawn: list[str] = []
        self.lost = False
        self.starting = self

    async def tell(self, replica: StartingReplica) -> None:
        if self.lost:
            raise Unavailable("no directory")
        self.said.append(replica)

    async def withdraw(self, replica_id: str) -> None:
        self.withdrawn.append(replica_id)

    async def reached(self, stage: str, done: int = 0) -> StartingReplica:
        """The first statement from now on of that stage, with so much done."""
        del self.said[:]
        await eventually(lambda: any((o.stage, o.done) == (stage, done) for o in self.said))
        return next(one for one in self.said if (one.stage, one.done) == (stage, done))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(start_report, "EVERY_S", 0.005)
    for module in (start_report, startup_timer):
        monkeypatch.setattr(module, "time", clock)
    return clock


def report_of(timer: StartupTimer, board: Board) -> StartReport:
    directory: Any = board
    return StartReport(timer, directory, "decode#a", "decode")


async def test_a_start_is_told_by_stage_with_bytes_rate_and_time_left(clock: Clock) -> None:
    timer, board = StartupTimer("import"), Board()
    async with report_of(timer, board):
        assert [one.stage for one in board.said] == ["import"]  # at once: imports block the loop
        timer.begin("weights")
        timer.expect(140 * GB, "bytes")
        said = await board.reached("weights")
        assert (said.total, said.unit, said.rate, said.left_s) == (140 * GB, "bytes", None, None)
        timer.advance(2 * GB)
        clock.now += 1
        said = await board.reached("weights", 2 * GB)
        assert (said.rate, said.left_s) == (None, None)  # a guess in the first seconds
        timer.advance(18 * GB)
        clock.now += 9
        said = await board.reached("weights", 20 * GB)
        assert (said.stage_s, said.rate, said.left_s) == (10, 2 * GB, 60)
        timer.begin("check")
        clock.now += 4
        said = await board.reached("check")
        assert (said.stage_s, said.total, said.left_s) == (4, 0, None)
        assert (said.weights_bytes, said.weights_s) == (20 * GB, 10)
        timer.end()
    assert board.said[-1].stage == "ready" and board.said[-1].weights_bytes == 20 * GB
    assert not board.withdrawn


async def test_a_rate_follows_a_disk_that_becomes_slow(clock: Clock) -> None:
    """The first gigabytes come from the page cache."""
    timer, board = StartupTimer("weights"), Board()
    timer.expect(140 * GB, "bytes")
    async with report_of(timer, board):
        done = 0
        for count, seconds in ((0, 0), (40, 4), *(((1, 2),) * 20)):
            timer.advance(count * GB)
            clock.now += seconds
            done += count
            said = await board.reached("weights", done * GB)
    assert said.rate == pytest.approx(GB / 2)
    assert said.left_s == pytest.approx(160)


async def test_a_reading_that_stands_still_has_no_time_left(clock: Clock) -> None:
    timer, board = StartupTimer("weights"), Board()
    timer.expect(140 * GB, "bytes")
    async with report_of(timer, board):
        timer.advance(40 * GB)
        for _ in range(3):
            clock.now += 31
            said = await board.reached("weights", 40 * GB)
    assert (said.rate, said.left_s) == (None, None)


async def test_a_failed_start_is_told_no_more(clock: Clock) -> None:
    timer, board = StartupTimer("weights"), Board()
    with pytest.raises(UnsupportedModel):
        async with report_of(timer, board):
            raise UnsupportedModel("model.safetensors is cut short")
    assert board.withdrawn == ["decode#a"] and [one.stage for one in board.said] == ["weights"]


async def test_a_lost_directory_delays_no_start(clock: Clock) -> None:
    timer, board = StartupTimer("import"), Board()
    board.lost = True
    async with report_of(timer, board):
        timer.begin("weights")
        board.lost = False
        await board.reached("weights")
        board.lost = True


async def test_the_log_has_a_line_now_and_then(
    clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's log gets them at any level."""
    container = tmp_path / "stderr"
    container.touch()
    monkeypatch.setenv("TANDEM_CONTAINER_LOG", str(container))
    caplog.set_level(logging.INFO, start_report.__name__)
    timer, board = StartupTimer("weights"), Board()
    timer.expect(140 * GB, "bytes")
    async with report_of(timer, board):
        for second in range(1, 25):
            timer.advance(2 * GB)
            clock.now += 1
            await board.reached("weights", second * 2 * GB)
        timer.begin("check")
        clock.now += 1
        await board.reached("check")
    assert [record.getMessage() for record in caplog.records] == [
        "starting: weights, 0 B of 140 GB",
        "starting: weights, 20.0 GB of 140 GB, 2.00 GB/s, about 60 s left",
        "starting: weights, 40.0 GB of 140 GB, 2.00 GB/s, about 50 s left",
        "starting: weights, 48.0 GB in 24.0 s",
        "starting: check, 1 s",
    ]
    lines = container.read_text().splitlines()
    assert [line.partition(" starting: ")[2] for line in lines] == [
        f"{record.getMessage().removeprefix('starting: ')} replica=decode#a"
        for record in caplog.records
    ]


async def test_the_log_of_a_fast_start_has_the_weights(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_report, "EVERY_S", 3600.0)
    caplog.set_level(logging.INFO, start_report.__name__)
    timer = StartupTimer("import")
    async with report_of(timer, Board()):
        timer.begin("weights")
        timer.expect(GB, "bytes")
        timer.advance(GB)
        timer.end()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["starting: import", "starting: weights, 1.00 GB in 0.0 s"]


async def test_a_container_log_that_takes_nothing_delays_no_start(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CONTAINER_LOG", str(tmp_path / "missing" / "file"))
    board = Board()
    async with report_of(StartupTimer("import"), board):
        assert board.said
