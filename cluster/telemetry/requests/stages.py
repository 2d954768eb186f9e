"""The stages of a choice, one behind the other, from the arrival of its request to its last token.

    admission ▸ prefill_queue ▸ prefill ▸ first_flush │ TTFT
        │ offer ▸ decode_admission ▸ transfer ▸ decode ▸ last_flush │ TTLT

A failover stands where the choice lost its replica: between two stretches of `prefill_queue` before
the first token, and behind it mostly between two stretches of `decode`.

Each stage has a begin and an end of its own, as they were measured: nothing fills a gap between two
stages. They are times on the router's clock, in which the replicas' own measures have their places.
What a transfer does while its prompt is computed is part of `prefill`. Behind the first token a
choice has only the stages that delayed its second token. The last stage of a choice that runs ends
with the present. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster.api import StageTime

if TYPE_CHECKING:
    from cluster.telemetry.requests.row import ChoiceRow

_MOST_ERROR = 0.01
# Of a time that is shorter than the clock's own error.
_LEAST_ERROR_S = 1e-4


@dataclass(frozen=True, slots=True)
class FailoverSpan:
    """A failover, in seconds since the request arrived.

    `replica` is where the choice was: with a prefill replica before its first token, and with a
    decode replica behind it. It is empty where another router was lost.
    """

    begin_s: float
    end_s: float
    replica: str = ""


@dataclass(frozen=True, slots=True)
class StageMark:
    """A stage from its own begin to its own end; `replica` is where the choice was.

    Without a replica it was in the router, or between two replicas.
    """

    stage: str
    begin_s: float
    end_s: float
    replica: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


def stages_of(choice: ChoiceRow) -> tuple[StageTime, ...]:
    """The stages that a choice went through; none where it was not admitted.

    A choice that got no token has only the stages that are known.
    """
    return tuple(StageTime(one.stage, one.begin_s, one.end_s) for one in stage_marks(choice))


def stage_marks(choice: ChoiceRow) -> list[StageMark]:
    """The stages that took time, with their replicas."""
    first, behind = _until_first(choice), _behind_first(choice)
    return [one for one in (*first, *behind) if one.seconds > 0]


def _until_first(choice: ChoiceRow) -> list[StageMark]:
    admitted_s, queue_s, ttft_s = choice.admitted_s, choice.queue_s, choice.ttft_s
    if admitted_s is None:
        return []
    if ttft_s is None or queue_s is None or choice.prefill_s is None:
        return _until_sent(choice, admitted_s, choice.failover_spans)[0]
    if admitted_s > ttft_s:
        # Another router had it, which tells when it last asked for the prompt, not when it admitted
        # it. A failover of that router before then is no stage.
        sent_s = queue_s if choice.sent_s is None else min(max(0.0, choice.sent_s), queue_s)
        marks = [
            StageMark("admission", 0.0, sent_s),
            StageMark("prefill_queue", sent_s, queue_s, choice.prefill_replica),
        ]
    else:
        lost = [one for one in choice.failover_spans if one.begin_s < ttft_s]
        marks, sent_s = _until_sent(choice, admitted_s, lost)
        marks.append(StageMark("prefill_queue", sent_s, queue_s, choice.prefill_replica))
    computed_s, flush_s = queue_s + choice.prefill_s, choice.first_flush_s
    begin_s = computed_s if flush_s is None else ttft_s - flush_s
    marks.append(StageMark("prefill", queue_s, computed_s, choice.prefill_replica))
    marks.append(StageMark("first_flush", begin_s, ttft_s, choice.prefill_replica))
    return marks


def _until_sent(
    choice: ChoiceRow, admitted_s: float, lost: Sequence[FailoverSpan]
) -> tuple[list[StageMark], float]:
    """The stages until the prompt came to the replica that computed it, and when that was."""
    marks, at_s = [], admitted_s
    if lost and lost[0].begin_s < admitted_s:
        # The router that had it before was lost.
        marks.append(StageMark("admission", 0.0, lost[0].begin_s))
        marks.append(StageMark("failover", lost[0].begin_s, lost[0].end_s))
        lost = lost[1:]
    else:
        marks.append(StageMark("admission", 0.0, admitted_s))
    for one in lost:
        marks.append(StageMark("prefill_queue", at_s, one.begin_s, one.replica))
        marks.append(StageMark("failover", one.begin_s, one.end_s, one.replica))
        at_s = one.end_s
    return marks, at_s


def _behind_first(choice: ChoiceRow) -> list[StageMark]:
    ttft_s, end_s = choice.ttft_s, _end_s(choice)
    if ttft_s is None or end_s is None:
        return []
    lost = [one for one in choice.failover_spans if one.begin_s >= ttft_s]
    if end_s <= ttft_s and not lost:
        return []
    if _waits_for_kv(choice) and not lost:
        return [StageMark("offer", ttft_s, end_s)]
    marks = list(_hand_over(choice, ttft_s, lost))
    at_s = marks[-1].end_s if marks else ttft_s
    begin_s = at_s if lost else _decode_begin_s(choice, ttft_s, at_s)
    for one in lost:
        marks.append(StageMark("decode", begin_s, one.begin_s, one.replica))
        marks.append(StageMark("failover", one.begin_s, one.end_s, one.replica))
        begin_s = one.end_s
    if begin_s < end_s:
        ended_s = end_s if choice.decoded_s is None else max(choice.decoded_s, ttft_s)
        # All tokens of a short rest may be on their way before the router takes the first one.
        ended_s = max(ended_s, begin_s) if lost else ended_s
        marks.append(StageMark("decode", begin_s, ended_s, choice.decode_replica))
        marks.append(StageMark("last_flush", ended_s, end_s, choice.decode_replica))
    return marks


def _end_s(choice: ChoiceRow) -> float | None:
    """The last token, or the present of a choice that runs."""
    return choice.ttlt_s if choice.running_s is None else choice.running_s


def _waits_for_kv(choice: ChoiceRow) -> bool:
    """Whether it runs, and decode has not said yet that it has the KV."""
    runs, handed_over = choice.running_s is not None, choice.route == "handed_over"
    return runs and handed_over and choice.transfer_end_s is None


def _hand_over(
    choice: ChoiceRow, ttft_s: float, lost: Sequence[FailoverSpan]
) -> Iterator[StageMark]:
    """What the second token waited for before it could be computed."""
    end_s, where = choice.transfer_end_s, choice.decode_replica
    if lost:
        where = lost[0].replica
    if end_s is None:
        # Another router that was lost does not tell when it had handed the KV over.
        if lost and lost[0].replica and choice.route == "handed_over":
            yield StageMark("offer", ttft_s, lost[0].begin_s)
        return
    offered_s, admitted_s = choice.offered_s, choice.decode_admitted_s
    if end_s <= ttft_s or offered_s is None or admitted_s is None:
        return
    yield StageMark("offer", ttft_s, max(ttft_s, offered_s))
    began_s = max(ttft_s, offered_s)
    yield StageMark("decode_admission", began_s, max(ttft_s, admitted_s), where)
    began_s = admitted_s if choice.transfer_begin_s is None else choice.transfer_begin_s
    yield StageMark("transfer", max(ttft_s, began_s), end_s)


def _decode_begin_s(choice: ChoiceRow, ttft_s: float, at_s: float) -> float:
    """When decode began, by its own measure; until the first token was out nobody waited for it."""
    if choice.decoded_s is None or choice.decode_s is None:
        return at_s
    began_s = choice.decoded_s - choice.decode_s
    possible_s = choice.transfer_end_s
    if possible_s is None:
        possible_s = (choice.queue_s or 0.0) + (choice.prefill_s or 0.0)
    sound = began_s >= possible_s - _error_s(choice.ttlt_s or 0.0)
    return max(began_s, ttft_s) if sound else began_s


def stage_faults(choice: ChoiceRow) -> list[str]:
    """Where the stages do not add up to TTFT or TTLT within 1 %, or do not follow each other.

    Of a choice that runs they add up to the present.

    What no stage has is a gap, and what two stages have is an overlap.
    """
    first, behind = _until_first(choice), _behind_first(choice)
    ttft_s, end_s = choice.ttft_s, _end_s(choice)
    faults: list[str] = []
    if ttft_s is not None and first:
        faults += _faults("TTFT", ttft_s, first)
        told = [one for one in behind if one.begin_s < (end_s or 0.0)]
        if told and end_s is not None:
            name = "TTLT" if choice.running_s is None else "the time so far"
            faults += _faults(name, end_s, [*first, *told])
    exposed_s, moved_s = choice.transfer_exposed_s, choice.transfer_end_s
    if exposed_s is not None and moved_s is not None and choice.transfer_begin_s is not None:
        whole_s = moved_s - choice.transfer_begin_s
        if exposed_s > whole_s + _error_s(whole_s):
            faults.append(f"{exposed_s:.6f} s of a transfer of {whole_s:.6f} s were exposed")
    return faults


def _faults(name: str, whole_s: float, marks: Sequence[StageMark]) -> Iterator[str]:
    error_s = _error_s(whole_s)
    sum_s = sum(one.seconds for one in marks)
    if abs(sum_s - whole_s) > error_s:
        yield f"the stages sum to {sum_s:.6f} s, and {name} is {whole_s:.6f} s"
    for one in marks:
        if one.seconds < -error_s:
            yield f"{one.stage} takes {one.seconds:.6f} s of a {name} of {whole_s:.6f} s"
    for one, following in pairwise(marks):
        between_s = following.begin_s - one.end_s
        if abs(between_s) > error_s:
            what = "a gap" if between_s > 0 else "an overlap"
            yield f"{what} of {abs(between_s):.6f} s between {one.stage} and {following.stage}"


def _error_s(whole_s: float) -> float:
    return max(_LEAST_ERROR_S, _MOST_ERROR * whole_s)
