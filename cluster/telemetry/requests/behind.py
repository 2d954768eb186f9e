"""The requests that kept another request waiting at its replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.telemetry.requests.row import ChoiceRow, RequestRow, whole

# Bound: the requests that are named for one wait.
MOST_NAMED = 5
# The shortest wait, and the shortest overlap with it, that is named.
LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """The time, in seconds since the epoch, for which a choice waited for a replica in a stage.

    What had the replica for less than `least_s` of it is not named.
    """

    stage: str
    choice: int
    replica: str
    begin_s: float
    end_s: float
    least_s: float = LEAST_S


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
    computed is not known.
    """
    return blockers_of(waits_of(whole(row)), rows, running, row)


def waits_of(row: Mapping[str, Any]) -> list[ReplicaWait]:
    """The waits of a row of `with_blockers`, by choice.

    A row of another router raises KeyError, TypeError, ValueError or AttributeError if it is bad.
    """
    found = []
    for choice in row["choices"]:
        sent_s = choice.get("sent_s") or choice.get("admitted_s") or 0.0
        for stage, replica, begin_s, end_s in (
            ("prefill_queue", "prefill_replica", sent_s, choice.get("queue_s")),
            ("decode_admission", "decode_replica", *_on_offer(choice)),
        ):
            if begin_s is not None and end_s is not None and end_s - begin_s >= LEAST_S:
                span = (row["received_at"] + begin_s, row["received_at"] + end_s)
                found.append(ReplicaWait(stage, choice["choice"], choice.get(replica, ""), *span))
    return found


def blockers_of(
    waits: Sequence[ReplicaWait],
    rows: Iterable[RequestRow],
    running: Iterable[RequestRow] = (),
    own: RequestRow | None = None,
) -> list[Blocker]:
    """The blockers of each wait. `own` is the row that waited, which may be among the rows."""
    if not waits:
        return []
    begin_s, end_s = min(one.begin_s for one in waits), max(one.end_s for one in waits)
    ended = [one for one in rows if one is not own]
    there = [one for one in ended if one.received_at < end_s and begin_s < _ended_s(one)]
    known = {_name(one) for one in ended}
    if own is not None:
        # It may run itself, or be among those that run for a moment longer.
        known.add(_name(own))
        there.insert(0, own)
    there += [one for one in running if _name(one) not in known]
    found: list[Blocker] = []
    for wait in waits:
        spans_of = _SPANS.get(wait.stage)
        if spans_of is not None:
            found += _named(wait, spans_of(wait, there), own)
    return found


def with_blockers(
    row: RequestRow, rows: Iterable[RequestRow], running: Iterable[RequestRow] = ()
) -> dict[str, Any]:
    """All that is known of a request, by name, and in `behind` what `blockers` finds."""
    return whole(row) | {"behind": [asdict(one) for one in blockers(row, rows, running)]}


def _on_offer(choice: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """From the offer of its KV to the admission at decode."""
    return choice.get("offered_s"), choice.get("decode_admitted_s")


def _of_prefill(wait: ReplicaWait, there: list[RequestRow]) -> list[_Occupancy]:
    """The prompts that the replica computed, each by its share."""
    spans = []
    for other in there:
        for one in other.choices:
            if one.prefill_replica == wait.replica and one.queue_s is not None:
                begin_s, took_s = other.received_at + one.queue_s, one.prefill_s or 0.0
                part = min(1.0, (one.prefill_share_s or took_s) / took_s) if took_s else 0.0
                spans.append(_Occupancy(other, one, begin_s, begin_s + took_s, part))
    return spans


def _of_decode(wait: ReplicaWait, there: list[RequestRow]) -> list[_Occupancy]:
    """The streams of the replica."""
    spans = []
    for other in there:
        for one in other.choices:
            if one.decode_replica == wait.replica and one.ttft_s is not None:
                begin_s = other.received_at + (one.decode_admitted_s or one.ttft_s)
                spans.append(_Occupancy(other, one, begin_s, _end_s(other, one)))
    return spans


# What has the replica in a stage; a wait in any other stage has no blockers.
_SPANS = {"prefill_queue": _of_prefill, "decode_admission": _of_decode}


def _end_s(row: RequestRow, choice: ChoiceRow) -> float:
    if row.total_s is None and choice.ttlt_s is None:
        return float("inf")
    return row.received_at + (choice.ttlt_s or choice.ttft_s or 0.0)


def _named(wait: ReplicaWait, spans: list[_Occupancy], own: RequestRow | None) -> list[Blocker]:
    found = []
    for span in spans:
        seconds = span.part * (min(span.end_s, wait.end_s) - max(span.begin_s, wait.begin_s))
        itself = span.row is own and span.choice.choice == wait.choice
        if seconds >= wait.least_s and not itself:
            found.append(
                Blocker(
                    wait.stage,
                    wait.choice,
                    wait.replica,
                    span.row.request_id,
                    span.row.tenant,
                    span.row.endpoint,
                    span.row.prompt_tokens or 0,
                    seconds,
                    span.choice.choice,
                    running=span.row.total_s is None,
                )
            )
    return sorted(found, key=lambda one: -one.seconds)[:MOST_NAMED]


def _ended_s(row: RequestRow) -> float:
    return row.received_at + (row.total_s or 0.0)


def _name(row: RequestRow) -> tuple[str, str, float]:
    """What no two requests share: a client may use an id again."""
    return row.tenant, row.request_id, row.received_at
