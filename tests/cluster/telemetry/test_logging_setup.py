"""Where lines of the log go."""

from __future__ import annotations

import io
import logging

import pytest

from cluster.telemetry.logging_setup import configure_logging


class Kept(logging.Handler):
    """As the handlers that Serve gives its logger: one for its file, and one for stderr."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(lambda record: not stderr or getattr(record, "log_to_stderr", True))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def serve(monkeypatch):
    file, stderr = Kept(stderr=False), Kept(stderr=True)
    logger = logging.getLogger("ray.serve")
    monkeypatch.setattr(logger, "handlers", [file, stderr])
    monkeypatch.setattr(logger, "level", logging.ERROR)
    return file, stderr


def test_a_replica_s_lines_are_in_serve_s_file_too(serve, logs_as_they_were):
    file, stderr = serve
    out = io.StringIO()
    configure_logging("info", out, replica="decode#1")
    log = logging.getLogger("decode_pool.loop")
    log.info("100 %s told", "times", extra={"request_id": "r-1"})
    try:
        raise ValueError("gone")
    except ValueError:
        log.exception("a fault")
    log.debug("not told")
    assert out.getvalue().splitlines() == file.lines
    first, second = file.lines
    assert first.endswith("decode_pool.loop 100 times told request_id=r-1 replica=decode#1")
    assert 'error="ValueError: gone"' in second
    assert not stderr.lines


def test_what_is_no_replica_writes_to_one_place(serve, logs_as_they_were):
    configure_logging("info", io.StringIO())
    logging.getLogger("cluster").info("told")
    assert not serve[0].lines
