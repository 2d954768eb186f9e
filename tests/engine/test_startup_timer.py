"""The stages of a start: what each took, all of them, and the longest."""

from __future__ import annotations

import pytest

from engine import startup_timer as stages
from engine.startup_timer import StartupTimer


def test_stages_are_as_long_as_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.5, 15.5, 16.0])
    monkeypatch.setattr(stages.time, "monotonic", lambda: next(now))
    clock = StartupTimer()
    for name in ("import", "weights", "doors"):
        clock.ended(name)
    assert clock.took == {"import": 1.5, "weights": 4.0, "doors": 0.5}
    assert (clock.total_s, clock.longest) == (6.0, "weights")
    assert str(clock) == "import 1.5 s, weights 4.0 s, doors 0.5 s"
