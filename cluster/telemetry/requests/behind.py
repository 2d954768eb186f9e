"""The requests that kept another request waiting at its replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.telemetry.requests.row import ChoiceRow, RequestRow

# Bound: the requests that are named for one wait.
_MOST_NAMED = 5
# The shortest overlap with a wait that is named.
_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Blocker:
    """A request that was computed for `seconds` while another one waited for that replica."""

    stage: str
    choice: int
    replica: str
    request_id: str
    tenant: str
    endpoint: str
    prompt_tokens: int
    seconds: float


def blockers(row: RequestRow, rows: Iterable[RequestRow]) -> list[Blocker]:
    """What each choice of a request waited behind, for each wait the longest first.

    `rows` are of the same router. A request that still runs has no row, and
    neither has a request of another router.
    """
    others = [other for other in rows if other is not row and _overlap(row, other)]
    found: list[Blocker] = []
    for choice in row.choices:
        found += _of_prefill(row, choice, others)
        found += _of_decode(row, choice, others)
    return found


def _of_prefill(row: RequestRow, choice: ChoiceRow, others: list[RequestRow]) -> list[Blocker]:
    """The prompts that its prefill replica computed while it was queued."""
    if choice.queue_s is None:
        return []
    wait = row.received_at, row.received_at + choice.queue_s
    spans = []
    for other in others:
        for one in other.choices:
            if one.prefill_replica == choice.prefill_replica and one.queue_s is not None:
                begin_s = other.received_at + one.queue_s
                spans.append((other, begin_s, begin_s + (one.prefill_s or 0.0)))
    return _named("queue", choice, choice.prefill_replica, wait, spans)


def _of_decode(row: RequestRow, choice: ChoiceRow, others: list[RequestRow]) -> list[Blocker]:
    """The streams of its decode replica while it waited there for KV blocks."""
    if choice.offered_s is None or choice.decode_admitted_s is None:
        return []
    wait = row.received_at + choice.offered_s, row.received_at + choice.decode_admitted_s
    spans = []
    for other in others:
        for one in other.choices:
            if one.decode_replica == choice.decode_replica and one.ttlt_s is not None:
                begin_s = other.received_at + (one.decode_admitted_s or one.ttft_s or 0.0)
                spans.append((other, begin_s, other.received_at + one.ttlt_s))
    return _named("decode_admission", choice, choice.decode_replica, wait, spans)


def _named(
    stage: str,
    choice: ChoiceRow,
    replica: str,
    wait: tuple[float, float],
    spans: list[tuple[RequestRow, float, float]],
) -> list[Blocker]:
    found = []
    for other, begin_s, end_s in spans:
        seconds = min(end_s, wait[1]) - max(begin_s, wait[0])
        if seconds >= _LEAST_S:
            tokens = other.prompt_tokens or 0
            found.append(
                Blocker(
                    stage,
                    choice.choice,
                    replica,
                    other.request_id,
                    other.tenant,
                    other.endpoint,
                    tokens,
                    seconds,
                )
            )
    return sorted(found, key=lambda one: -one.seconds)[:_MOST_NAMED]


def _overlap(row: RequestRow, other: RequestRow) -> bool:
    """Whether both were there at one time."""
    ends = [one.received_at + (one.total_s or 0.0) for one in (row, other)]
    return row.received_at < ends[1] and other.received_at < ends[0]
