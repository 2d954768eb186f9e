"""The launcher's calls of Serve: each ends, whether its controller answers or not."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.schema import TandemConfig
from cluster.deploy.startup_progress import StartupProgress
from engine.errors import Unavailable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own use of pydantic
    from cluster.deploy import ray_cluster
    from cluster.deploy.serve_app import APPLICATION


class StandIn:
    """Ray and Serve with an application that takes `ends_s` to end, on a clock of its own."""

    RunTarget = staticmethod(lambda *_, **__: None)

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

    def start(self, **_: object) -> None:
        pass

    def run_many(self, *_: object, **__: object) -> None:
        pass

    def timed(
        self, call: Callable[[], None], timeout_s: float, meanwhile: Callable[[], None]
    ) -> None:
        call()
        meanwhile()
        self.now += min(timeout_s, self._ends_s)

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
    monkeypatch.setattr(ray_cluster, "timed", stand_in.timed)
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


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("ask", "verb", "words"),
    [
        (lambda one: one.failure(), "status", "Serve does not answer: no answer within 0.1 s"),
        (lambda one: one.deploy(), "status", "Serve does not answer: no answer within 0.1 s"),
        (lambda one: one.begin(TandemConfig()), "run_many", "Serve did not deploy: no answer"),
        (lambda one: one.start_serve(), "start", "Serve did not start: no answer"),
    ],
)
def test_a_frozen_controller_is_given_up_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], object], verb: str, words: str
) -> None:
    stand_in, answered = StandIn(0.0), threading.Event()
    monkeypatch.setattr(ray_cluster, "serve", stand_in)
    monkeypatch.setattr(ray_cluster, "ray", SimpleNamespace(cluster_resources=dict))
    for name in ("build", "share_of_cluster"):
        monkeypatch.setattr(ray_cluster, name, lambda *_: None)
    monkeypatch.setattr(ray_cluster, "_ANSWER_S", 0.1)
    monkeypatch.setattr(stand_in, verb, lambda *_, **__: answered.wait())
    with pytest.raises(Unavailable, match=words):
        ask(ray_cluster.RayCluster(TandemConfig(), StartupProgress(io.StringIO())))
    answered.set()


@pytest.mark.timeout(30)
def test_the_gcs_is_kept_while_the_start_waits_for_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller cannot answer before the GCS is back."""
    kept, stand_in = threading.Event(), StandIn(0.0)
    subject = ray_cluster.RayCluster(TandemConfig(), StartupProgress(io.StringIO()))
    monkeypatch.setattr(ray_cluster, "serve", stand_in)
    monkeypatch.setattr(subject, "keep", kept.set)
    monkeypatch.setattr(stand_in, "status", lambda: kept.wait() and StandIn.status(stand_in))
    assert subject.failure() == "the application is gone"
