"""Ends a request by its id, on whichever router it runs: for its client, and for operators.

A router that is asked looks at its own requests alone, so no question goes round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.router.peers.peer_calls import Peers
from cluster.router.running_requests import RunningRequests
from engine.errors import Cancelled, Overloaded, Unavailable
from protos.peer_pb2 import PeerQuestion, StopQuestion

log = logging.getLogger(__name__)

# Bound: cancels of clients that wait for other routers at a time.
MOST_CANCELS = 64
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """Whether the request was found, and the routers that did not answer, with the reason."""

    found: bool
    silent: Mapping[str, str] = field(default_factory=dict)


class RequestStops:
    """Ends what is in `running`, and asks `peers` to end what is not."""

    def __init__(self, running: RunningRequests) -> None:
        self._running = running
        self._cancels = 0
        self.peers: Peers | None = None

    def here(self, request_id: str, tenant: str, operator: str = "") -> bool:
        """End a request of this router; False where the tenant has none of that id.

        Without an operator its client cancels it.
        """
        running = self._running.find(tenant, request_id)
        if running is None:
            return False
        if not operator:
            return running.cancel(Cancelled("the request was cancelled"))
        found = running.cancel(Cancelled("an operator stopped the request"))
        if found:
            stopped = {"operator": operator, "request_id": request_id, "tenant": tenant}
            log.warning("request stopped by an operator", extra=stopped)
        return found

    async def anywhere(self, request_id: str, tenant: str, operator: str = "") -> StopOutcome:
        """End a tenant's request of this router or of another one, within `ASK_S`."""
        if self.here(request_id, tenant, operator):
            return StopOutcome(found=True)
        if self.peers is None or not self.peers.others():
            return StopOutcome(found=False)
        stop = StopQuestion(request_id=request_id, tenant=tenant, operator=operator)
        asked = await self.peers.ask_all(PeerQuestion(stop=stop), lambda one: one.stop.found)
        found = any(one.stop.found for one in asked.found.values())
        # It may have begun here meanwhile.
        return StopOutcome(found or self.here(request_id, tenant, operator), asked.silent)

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """End a tenant's request for its client; False where the tenant has none of that id.

        The requests of other tenants change no answer. Raises Unavailable where a router that may
        have the request does not answer, and Overloaded at the bound.
        """
        if self.here(request_id, tenant):
            return True
        if self._cancels >= MOST_CANCELS:
            text = f"{MOST_CANCELS} cancels wait for other routers, the most there may"
            raise Overloaded(text, retry_after_s=_RETRY_S)
        self._cancels += 1
        try:
            outcome = await self.anywhere(request_id, tenant)
        finally:
            self._cancels -= 1
        if outcome.silent and not outcome.found:
            text = "no router that answered runs the request, and a router did not answer"
            raise Unavailable(text, retry_after_s=_RETRY_S)
        return outcome.found
