"""The stages of a start: what each took, all of them, and the longest."""

from __future__ import annotations

import pytest

from engine import startup_timer
from engine.startup_timer import StartupTimer


def test_stages_are_as_long_as_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.5, 15.5, 16.0])
    monkeypatch.setattr(startup_timer.time, "monotonic", lambda: next(now))
    timer = StartupTimer()
    for name in ("import", "weights", "front_ends"):
        timer.ended(name)
    assert timer.took == {"import": 1.5, "weights": 4.0, "front_ends": 0.5}
    assert (timer.total_s, timer.longest) == (6.0, "weights")
    assert str(timer) == "import 1.5 s, weights 4.0 s, front_ends 0.5 s"
