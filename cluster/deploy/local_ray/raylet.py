"""Ray's raylet on one machine: the process that starts all others, which nothing can replace.

Replicas and routers live on without it, and none of them is replaced any more.
"""

from __future__ import annotations

from cluster.deploy.child_processes import ended
from cluster.deploy.local_ray.gcs_server import child_named
from engine.errors import Unavailable


class Raylet:
    """The raylet that `ray.init` started, by its process id."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @classmethod
    def find(cls) -> Raylet:
        """The raylet, a child of this process; raises Unavailable if there is none."""
        return cls(child_named("raylet")[0])

    def check(self) -> None:
        """Raise Unavailable if it died."""
        if ended(self._pid):
            raise Unavailable("Ray's raylet died, and no replica can be replaced any more")
