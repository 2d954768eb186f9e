"""The stages of a start: what each took, all of them, the longest, and how far one is."""

from __future__ import annotations

import pytest

from engine import startup_timer
from engine.startup_timer import StartupTimer


def test_stages_are_as_long_as_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.5, 15.5, 16.0])
    monkeypatch.setattr(startup_timer.time, "monotonic", lambda: next(now))
    timer = StartupTimer("import")
    timer.begin("weights")
    timer.begin("front_ends")
    timer.end()
    assert timer.took == {"import": 1.5, "weights": 4.0, "front_ends": 0.5}
    assert (timer.total_s, timer.longest) == (6.0, "weights")
    assert str(timer) == "import 1.5 s, weights 4.0 s, front_ends 0.5 s"


def test_a_stage_counts_what_is_done_of_what_is_expected() -> None:
    timer = StartupTimer()
    timer.advance(7)  # between two stages nothing is counted
    timer.expect(7, "bytes")
    assert timer.stage is None and not timer.counted
    timer.begin("weights")
    timer.expect(100, "bytes")
    timer.advance(30)
    timer.advance(40)
    stage = timer.stage
    assert stage is not None
    assert (stage.name, stage.done, stage.total, stage.unit) == ("weights", 70, 100, "bytes")
    timer.begin("check")
    assert timer.stage is not None and (timer.stage.done, timer.stage.total) == (0, None)
    timer.end()
    timer.end()  # an ended timer stays as it is
    assert timer.counted == {"weights": 70} and list(timer.took) == ["weights", "check"]
