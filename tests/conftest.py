"""What every test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cluster.logs import PACKAGES


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that was run in the process has set our logs up for itself."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(log.handlers, log.level, log.propagate) for log in loggers]
    yield
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)
