"""The requests that kept another request waiting at its replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cluster.telemetry.requests.row import ChoiceRow, RequestRow, whole

# Bound: the requests that are named for one wait.
_MOST_NAMED = 5
# The shortest overlap with a wait that is named.
_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Blocker:
    """A choice that was computed for `seconds` while another one waited for that replica.

    `choice` is the one that waited, and `of_choice` the one before it, of `request_id`. `running`:
    it has not ended.
    """

    stage: str
    choice: int
    replica: str
    request_id: str
    tenant: str
    endpoint: str
    prompt_tokens: int
    seconds: float
    of_choice: int = 0
    running: bool = False


@dataclass(frozen=True, slots=True)
class _Occupancy:
    """The time, since the epoch, in which a choice had its replica, or the `part` of it."""

    row: RequestRow
    choice: ChoiceRow
    begin_s: float
    end_s: float
    part: float = 1.0


def blockers(
    row: RequestRow, rows: Iterable[RequestRow], running: Iterable[RequestRow] = ()
) -> list[Blocker]:
    """What each choice of a request waited behind, for each wait the longest first.

    `rows` ended, and those in `running` go on; all are of the same router. A prompt that is still
    computed is not known, and neither is a request of another router.
    """
    there = [row, *(other for other in rows if other is not row and _overlap(row, other))]
    known = {_name(one) for one in there}
    there += [one for one in running if _name(one) not in known]
    found: list[Blocker] = []
    for choice in row.choices:
        found += _of_prefill(row, choice, there)
        found += _of_decode(row, choice, there)
    return found


def with_blockers(
    row: RequestRow, rows: Iterable[RequestRow], running: Iterable[RequestRow] = ()
) -> dict[str, Any]:
    """All that is known of a request, by name, and in `behind` what `blockers` finds."""
    return whole(row) | {"behind": [asdict(one) for one in blockers(row, rows, running)]}


def _of_prefill(row: RequestRow, choice: ChoiceRow, there: list[RequestRow]) -> list[Blocker]:
    """The prompts that its prefill replica computed while it was queued, each by its share."""
    if choice.queue_s is None:
        return []
    sent_s = choice.sent_s or choice.admitted_s or 0.0
    wait = row.received_at + sent_s, row.received_at + choice.queue_s
    spans = []
    for other in there:
        for one in other.choices:
            if one.prefill_replica == choice.prefill_replica and one.queue_s is not None:
                begin_s, took_s = other.received_at + one.queue_s, one.prefill_s or 0.0
                part = min(1.0, (one.prefill_share_s or took_s) / took_s) if took_s else 0.0
                spans.append(_Occupancy(other, one, begin_s, begin_s + took_s, part))
    return _named("prefill_queue", row, choice, choice.prefill_replica, wait, spans)


def _of_decode(row: RequestRow, choice: ChoiceRow, there: list[RequestRow]) -> list[Blocker]:
    """The streams of its decode replica while its KV was on offer there."""
    if choice.offered_s is None or choice.decode_admitted_s is None:
        return []
    wait = row.received_at + choice.offered_s, row.received_at + choice.decode_admitted_s
    spans = []
    for other in there:
        for one in other.choices:
            if one.decode_replica == choice.decode_replica and one.ttft_s is not None:
                begin_s = other.received_at + (one.decode_admitted_s or one.ttft_s)
                spans.append(_Occupancy(other, one, begin_s, _end_s(other, one)))
    return _named("decode_admission", row, choice, choice.decode_replica, wait, spans)


def _end_s(row: RequestRow, choice: ChoiceRow) -> float:
    if row.total_s is None:
        return float("inf")
    return row.received_at + (choice.ttlt_s or choice.ttft_s or 0.0)


def _named(
    stage: str,
    row: RequestRow,
    choice: ChoiceRow,
    replica: str,
    wait: tuple[float, float],
    spans: list[_Occupancy],
) -> list[Blocker]:
    found = []
    for span in spans:
        seconds = span.part * (min(span.end_s, wait[1]) - max(span.begin_s, wait[0]))
        if seconds >= _LEAST_S and (span.row is not row or span.choice.choice != choice.choice):
            found.append(
                Blocker(
                    stage,
                    choice.choice,
                    replica,
                    span.row.request_id,
                    span.row.tenant,
                    span.row.endpoint,
                    span.row.prompt_tokens or 0,
                    seconds,
                    span.choice.choice,
                    running=span.row.total_s is None,
                )
            )
    return sorted(found, key=lambda one: -one.seconds)[:_MOST_NAMED]


def _overlap(row: RequestRow, other: RequestRow) -> bool:
    """Whether both, which have ended, were there at one time."""
    ends = [one.received_at + (one.total_s or 0.0) for one in (row, other)]
    return row.received_at < ends[1] and other.received_at < ends[0]


def _name(row: RequestRow) -> tuple[str, str, float]:
    """What no two requests share: a client may use an id again."""
    return row.tenant, row.request_id, row.received_at
