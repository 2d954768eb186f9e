"""What a killed launcher leaves behind is ended; what an ended one leaves is its own business."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.deploy.child_processes import descendants
from cluster.deploy.orphan_guard import NAME
from tests.cluster.deploy.test_embedded_redis import ends_within, running
from tests.eventually import wait_until

# A child that the kernel would end, and a grandchild that belongs to nobody then.
PARENT = """
import subprocess, sys
from cluster.deploy.child_processes import adopt_orphans, tied
from cluster.deploy.orphan_guard import OrphanGuard
adopt_orphans()
child = subprocess.Popen(tied(["sh", "-c", "sleep 600 & echo $!; wait"]), stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), end="", flush=True)
guard = OrphanGuard()  # it knows the grandchild from its start
sys.stdin.readline()
guard.stop()
"""


@pytest.fixture
def leave() -> Iterator[list[int]]:
    """The processes to end after the test."""
    left: list[int] = []
    yield left
    for pid in left:
        if running(pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def begin() -> tuple[subprocess.Popen[str], int]:
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_grandchild_of_a_killed_parent_is_ended(leave: list[int]) -> None:
    parent, grandchild = begin()
    leave.append(grandchild)
    with parent:
        wait_until(lambda: NAME in map(name, descendants(parent.pid)))
        parent.send_signal(signal.SIGKILL)
    assert ends_within(grandchild, 30)


def test_a_guard_that_was_stopped_ends_nothing(leave: list[int]) -> None:
    parent, grandchild = begin()
    leave.append(grandchild)
    with parent:
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait(30) == 0
    assert running(grandchild)
