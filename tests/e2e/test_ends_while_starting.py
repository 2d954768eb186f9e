"""`tandem serve` told to end before it is ready, as a supervisor with a short temper does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.serving import START_TIMEOUT_S, STOP_TIMEOUT_S, begin, descendants
from tests.eventually import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(420),
    pytest.mark.usefixtures("signals_heard"),
]


def _runs(pid: int, name: str) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


# What is to be seen: in the log, or among the processes. The raylet is there before ray.init is
# over, and with it a handler of SIGTERM that is Ray's.
@pytest.mark.parametrize(
    ("number", "stage"),
    [
        (signal.SIGTERM, "  directory"),
        (signal.SIGTERM, "raylet"),
        (signal.SIGHUP, "  ray"),
        (signal.SIGTERM, "  serve"),
        (signal.SIGINT, "  router 1/1"),
    ],
)
def test_it_ends_in_order_and_leaves_nothing(model, model_folder, tmp_path, number, stage):
    log = tmp_path / "serve.log"
    process = begin("--model", str(model_folder), log=log)
    try:
        seen = set[int]()

        def is_at_the_stage() -> bool:
            assert process.poll() is None, log.read_text()
            seen.update(descendants(process.pid))
            return stage in log.read_text() or any(_runs(pid, stage) for pid in seen)

        wait_until(is_at_the_stage, START_TIMEOUT_S)
        # Where this process is slow, the stage may have gone by.
        was_ready = "\nready" in log.read_text()
        process.send_signal(number)
        seen |= descendants(process.pid)
        assert process.wait(STOP_TIMEOUT_S) == 0, log.read_text()
        assert [pid for pid in seen if Path(f"/proc/{pid}").exists()] == []
        assert was_ready or "\nready" not in log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
