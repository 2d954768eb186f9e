"""A raylet that died is noticed, as nothing replaces it."""

from __future__ import annotations

import subprocess

import pytest

from cluster.deploy.child_processes import ended
from cluster.deploy.local_ray.raylet import Raylet
from engine.errors import Unavailable
from tests.eventually import wait_until


def test_a_raylet_that_died_is_no_cluster() -> None:
    process = subprocess.Popen(["sleep", "600"])
    raylet = Raylet(process.pid)
    raylet.check()
    process.kill()
    wait_until(lambda: ended(process.pid))
    with pytest.raises(Unavailable, match="raylet died"):
        raylet.check()
    process.wait()


def test_without_a_raylet_ray_did_not_start() -> None:
    with pytest.raises(Unavailable, match="no raylet"):
        Raylet.find()
