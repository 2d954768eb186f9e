"""When a choice was between two replicas: one span for each replica that it lost. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.telemetry.requests.stages import FailoverSpan


@dataclass(frozen=True, slots=True)
class ReplicaLoss:
    """A loss of a replica at `at_s`, and the time at which its prompt was last asked for.

    Both are monotonic. `prefill` and `decode` are the replicas that the choice had.
    """

    at_s: float
    sent_s: float | None
    prefill: str
    decode: str


@dataclass(frozen=True, slots=True)
class ChoiceMarks:
    """When a choice got its tokens, and other marks between which it failed over; monotonic.

    `first_s` is its first token, and `came_s` are the events with tokens on this router.
    `committed_s`: its KV was handed over. `waits_for_kv`: decode does not compute the prompt.
    `ended_s`: the present, or its end. `adopted_s`: it came from another router, where it last went
    on at `stopped_s`.
    """

    began_s: float
    came_s: Sequence[float]
    first_s: float | None
    sent_s: float | None
    committed_s: float | None
    ended_s: float
    waits_for_kv: bool = False
    adopted_s: float | None = None
    stopped_s: float | None = None


def failover_spans(losses: Sequence[ReplicaLoss], marks: ChoiceMarks) -> tuple[FailoverSpan, ...]:
    """The failovers in seconds since arrival, in order, none over another.

    A failover begins where the choice stopped: with its last token where there was one, else with
    the loss. It ends where the choice goes on: with the next token, and before the first token with
    the next request for it.
    """
    if not losses and marks.adopted_s is None:
        return ()
    found = list(_absolute(losses, marks))
    return tuple(
        FailoverSpan(begin_s - marks.began_s, max(begin_s, end_s) - marks.began_s, replica)
        for begin_s, end_s, replica in found
    )


def _absolute(
    losses: Sequence[ReplicaLoss], marks: ChoiceMarks
) -> Iterator[tuple[float, float, str]]:
    stopped_s = None
    if marks.adopted_s is not None:
        begin_s = marks.stopped_s
        if marks.first_s is not None and marks.first_s < marks.adopted_s:
            stopped_s = marks.adopted_s
            begin_s = stopped_s if begin_s is None else min(begin_s, stopped_s)
            yield begin_s, _next_token(stopped_s, losses, marks), ""
        else:
            begin_s = marks.began_s if begin_s is None else min(begin_s, marks.adopted_s)
            yield begin_s, marks.adopted_s, ""
    for number, loss in enumerate(losses):
        later = losses[number + 1 :]
        if marks.first_s is None or loss.at_s < marks.first_s:
            yield loss.at_s, _asked_again(loss.at_s, later, marks), loss.prefill
            continue
        begin_s = _stopped(loss.at_s, stopped_s, marks)
        stopped_s = loss.at_s
        yield begin_s, _next_token(loss.at_s, later, marks), loss.decode


def _asked_again(lost_s: float, later: Sequence[ReplicaLoss], marks: ChoiceMarks) -> float:
    asked = [*(one.sent_s for one in later), marks.sent_s]
    return next((sent_s for sent_s in asked if sent_s and sent_s > lost_s), marks.ended_s)


def _stopped(lost_s: float, before_s: float | None, marks: ChoiceMarks) -> float:
    """When the choice stopped that was lost then; an earlier failover began at `before_s`."""
    came = bisect_right(marks.came_s, lost_s)
    last_s = marks.came_s[came - 1] if came else None
    if last_s is None or (before_s is not None and before_s >= last_s):
        return lost_s
    if came > 1 or not marks.waits_for_kv:
        return last_s
    return lost_s if marks.committed_s is None else max(last_s, min(lost_s, marks.committed_s))


def _next_token(after_s: float, later: Sequence[ReplicaLoss], marks: ChoiceMarks) -> float:
    came = bisect_right(marks.came_s, after_s)
    next_s = marks.came_s[came] if came < len(marks.came_s) else marks.ended_s
    return min(next_s, later[0].at_s) if later else next_s
