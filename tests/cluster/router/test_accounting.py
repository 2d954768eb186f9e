"""The rows of requests that run."""

from __future__ import annotations

from cluster.admission.assignment import QueueWait
from cluster.router.accounting import RequestAccount, running_row
from cluster.router.canary.routing import CanaryRoute


def test_the_row_of_a_request_that_waits_has_the_reason_of_now():
    wait = QueueWait()

    def look():
        wait.reason, wait.seconds = "kv_blocks", 0.5

    wait.look = look
    account = RequestAccount(
        "a", "acme", {"lane": "interactive"}, CanaryRoute("chat", "chat"), wait=wait
    )
    assert running_row(account).waited_for == "kv_blocks"
