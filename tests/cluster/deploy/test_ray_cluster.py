"""The end of the application: the launcher waits for it as long as a drain may take."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cluster.config.schema import TandemConfig
from cluster.deploy.startup_progress import StartupProgress

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own use of pydantic
    from cluster.deploy import ray_cluster
    from cluster.deploy.serve_app import APPLICATION


class StandIn:
    """Ray and Serve with an application that takes `ends_s` to end, on a clock of its own."""

    def __init__(self, ends_s: float) -> None:
        self.now = 0.0
        self.deleted, self.running = False, True
        self._ends_s = ends_s

    def monotonic(self) -> float:
        return self.now

    def delete(self, name: str, _blocking: bool) -> None:
        self.deleted = name == APPLICATION and not _blocking

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(applications={})

    def Thread(self, target: Callable[[], None], **_: object) -> StandIn:  # noqa: N802
        target()
        return self

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return self.now < self._ends_s

    def join(self, seconds: float) -> None:
        self.now += seconds

    def is_initialized(self) -> bool:
        return self.running

    def shutdown(self) -> None:
        self.running = False


@pytest.mark.parametrize(
    ("drain_s", "ends_s", "until_s"),
    [(600.0, 500.0, 500.0), (10.0, 500.0, 25.0), (600.0, 1.0, 1.0)],
)
def test_it_waits_for_the_drains_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, drain_s: float, ends_s: float, until_s: float
) -> None:
    stand_in = StandIn(ends_s)
    for name in ("ray", "serve", "threading", "time"):
        monkeypatch.setattr(ray_cluster, name, stand_in)
    config = replace(TandemConfig(), ray=replace(TandemConfig().ray, drain_s=drain_s))
    ray_cluster.RayCluster(config, StartupProgress(io.StringIO())).stop()
    assert stand_in.deleted
    assert not stand_in.running
    assert stand_in.now == pytest.approx(until_s, abs=1.0)


@pytest.mark.timeout(30)
def test_a_controller_that_never_answers_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Serve's does where the raylet died."""
    stand_in, answered = StandIn(0.0), threading.Event()
    monkeypatch.setattr(ray_cluster, "ray", stand_in)
    monkeypatch.setattr(ray_cluster, "serve", stand_in)
    monkeypatch.setattr(ray_cluster, "_END_S", 0.1)
    monkeypatch.setattr(stand_in, "status", answered.wait)
    config = replace(TandemConfig(), ray=replace(TandemConfig().ray, drain_s=0.0))
    ray_cluster.RayCluster(config, StartupProgress(io.StringIO())).stop()
    answered.set()
    assert stand_in.deleted
    assert not stand_in.running
