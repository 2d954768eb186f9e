"""Private temporary folders: gone with their process, or with the next one."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import locked_folder
from cluster.locked_folder import LockedFolder, sweep


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(locked_folder, "_SWEEP_AGE_S", -1.0)


def test_a_folder_is_for_this_user_alone_and_is_taken_away(tmp_path):
    made, other = LockedFolder.make("x-", tmp_path), LockedFolder.make("x-", tmp_path)
    (made.path / "file").write_text("a")
    assert made.path.stat().st_mode & 0o777 == 0o700
    for one in (made, made, other):
        one.remove()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_and_a_living_one_keeps_its_own(tmp_path):
    code = f"""
from pathlib import Path
from cluster.locked_folder import LockedFolder
made = LockedFolder.make("x-", Path({str(tmp_path)!r}))
print(made.path, flush=True)
import time; time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().strip())
        mine = LockedFolder.make("x-", tmp_path)
        assert left.exists()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    later = LockedFolder.make("x-", tmp_path)
    assert not left.exists()
    assert mine.path.exists()
    for one in (mine, later):
        one.remove()


def test_another_prefix_and_a_link_are_left_alone(tmp_path):
    other = tmp_path / "y-1"
    other.mkdir()
    (tmp_path / "x-link").symlink_to(other)
    LockedFolder.make("x-", tmp_path).remove()
    assert other.exists()


def test_old_files_without_a_lock_are_swept_and_locked_or_young_ones_are_not(tmp_path):
    left, locked = tmp_path / "x-left", tmp_path / "x-locked"
    left.touch()
    with locked.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep(tmp_path, "x-", 60.0)
        assert left.exists()
        sweep(tmp_path, "x-")
        assert [*tmp_path.iterdir()] == [locked]
