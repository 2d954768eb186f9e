"""Gives admitted choices other replicas, because theirs were lost or make them wait."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from cluster.admission.assignment import Assignment
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.placement.placement import Placement
from cluster.placement.types import PlacementPlan, PlacementRequest


class Reassigner:
    """Plans admitted choices again, and counts their load.

    `plan` plans a choice from its prompt on, and `take` counts one for its tenant.
    """

    def __init__(
        self,
        pools: HealthyReplicas,
        placement: Placement,
        plan: Callable[[PlacementRequest, float], PlacementPlan],
        take: Callable[[PlacementRequest, PlacementPlan, float], Assignment],
        clock: Callable[[], float],
    ) -> None:
        self._pools = pools
        self._placement = placement
        self._plan = plan
        self._take = take
        self._clock = clock

    def reassign(
        self,
        assignment: Assignment,
        request: PlacementRequest,
        *,
        streaming: bool,
        without: Collection[str] = (),
    ) -> None:
        """Give a choice another pair, whatever that means for other requests.

        A choice that is `streaming` goes to a decode replica, which computes what `request` has as
        its prompt, and to none of `without`. Raises Unavailable and PromptTooLong.
        """
        now = self._clock()
        plan = self._resume(request, now, without) if streaming else self._plan(request, now)
        self._move(assignment, request, plan, now)

    def adopt(self, request: PlacementRequest, *, streaming: bool) -> Assignment:
        """Assign a choice that another router admitted, as `reassign` does."""
        now = self._clock()
        plan = self._resume(request, now, ()) if streaming else self._plan(request, now)
        return replace(self._take(request, plan, now), failed_over=True)

    def hasten(self, assignment: Assignment, request: PlacementRequest) -> bool:
        """Give a stream that stands still another decode replica, if that halves its wait.

        Raises Unavailable and PromptTooLong.
        """
        now, resumes = self._clock(), self._placement.resumes
        here = self._pools.latest(assignment.plan.pair.decode)
        plan = self._resume(request, now, (here.id,))
        there_s = resumes.seconds(plan.pair.decode, request, now)
        if 2 * there_s >= resumes.left_s(here, now):
            return False
        assignment.release_load()
        self._move(assignment, request, plan, now)
        return True

    def _resume(
        self, request: PlacementRequest, now: float, without: Collection[str]
    ) -> PlacementPlan:
        decode = [one for one in self._pools.healthy("decode") if one.id not in without]
        return self._placement.plan_resume(self._pools.healthy("prefill"), decode, request, now)

    def _move(
        self, assignment: Assignment, request: PlacementRequest, plan: PlacementPlan, now: float
    ) -> None:
        assignment.plan = plan
        assignment.shares = self._placement.add_load(plan, request, now)
        assignment.failed_over = True
