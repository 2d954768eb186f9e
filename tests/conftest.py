"""What every test leaves as it found it, and what none is judged by: how long it takes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from cluster.replica.gc_tuning import settle
from cluster.telemetry.logging_setup import PACKAGES
from cluster.telemetry.request_log import RequestLog
from cluster.telemetry.requests.row import RequestRow, faults_of

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from cluster.telemetry.traces.request_tracer import RequestSpan

with suppress(ImportError):  # an image for GPUs may not have it
    from hypothesis import HealthCheck, settings

    # How long an example takes says how busy the machine is, and nothing of what is tested.
    settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    # CI draws the same examples each time, so that what it finds is due to the change. All others
    # look for new ones.
    settings.register_profile("same", settings.get_profile("untimed"), derandomize=True)
    settings.load_profile("same" if os.environ.get("CI") else "untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """What runs beside each other: files, and of those with a real Ray cluster one at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "clusters" if nodeid.startswith("tests/e2e/") else nodeid.split("::", 1)[0]

    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """What was imported stays, and is not looked through for garbage again and again."""
    settle()


@pytest.fixture(scope="session", autouse=True)
def servers_end_soon() -> Iterator[None]:
    """uvicorn looks at a server that is to end every tenth of a second; here ten times as often.

    The tests end hundreds of servers, and wait each time.
    """
    try:
        from uvicorn import server
    except ImportError:  # an image for GPUs may not have it
        yield
        return
    pause = asyncio.sleep
    sooner = SimpleNamespace(**vars(asyncio) | {"sleep": lambda delay_s: pause(delay_s / 10)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "asyncio", sooner)
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that was run in the process has set our logs up for itself."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(log.handlers, log.level, log.propagate) for log in loggers]
    yield
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.fixture(autouse=True)
def rows_add_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stages of each row of the request log sum to TTFT and TTLT, whatever is tested."""
    faults: list[str] = []
    add = RequestLog.add

    def checked(log: RequestLog, row: RequestRow, span: RequestSpan | None = None) -> int:
        faults.extend(faults_of(row))
        return add(log, row, span)

    monkeypatch.setattr(RequestLog, "add", checked)
    yield
    assert not faults


@pytest.fixture
def signals_heard() -> Iterator[None]:
    """As on a terminal. What nohup or a script starts in the background ignores them, and what that
    starts does, too.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
