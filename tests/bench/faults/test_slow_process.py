"""A slowed process stands still for its share of the time, and runs again at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults.slow_process import slowed
from tests.eventually import eventually


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


async def test_it_stops_and_runs_and_runs_at_the_end(process):
    async with slowed(process.pid, 0.7):
        await eventually(lambda: state_of(process.pid) == "T")
        await eventually(lambda: state_of(process.pid) != "T")
        await eventually(lambda: state_of(process.pid) == "T")
    await eventually(lambda: state_of(process.pid) != "T")


async def test_the_end_of_the_process_is_no_fault(process):
    process.kill()
    process.communicate()
    async with slowed(process.pid, 0.5):
        pass
