"""The end of the application: the launcher waits for it as long as a drain may take."""

from __future__ import annotations

import io
import warnings
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
        self.deleted = self.running = True
        self._ends_s = ends_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def delete(self, name: str, _blocking: bool) -> None:
        self.deleted = name == APPLICATION and not _blocking

    def status(self) -> SimpleNamespace:
        ended = self.now >= self._ends_s
        return SimpleNamespace(applications={} if ended else {APPLICATION: None})

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
    for name in ("ray", "serve", "time"):
        monkeypatch.setattr(ray_cluster, name, stand_in)
    config = replace(TandemConfig(), ray=replace(TandemConfig().ray, drain_s=drain_s))
    ray_cluster.RayCluster(config, StartupProgress(io.StringIO())).stop()
    assert stand_in.deleted
    assert not stand_in.running
    assert stand_in.now == pytest.approx(until_s, abs=1.0)
