"""How far a choice is, as the journal has it and as the router has it."""

from __future__ import annotations

import time

from cluster.api import Progress, Scored, Tokens
from cluster.journal.entries import FirstTokenStages
from cluster.journal.rebuild import RebuiltChoice, RebuiltStream
from cluster.journal.stream import JournaledStream
from cluster.router.choice_stream import Emit
from cluster.router.phases import EmitOf
from cluster.router.resume_state import ChoiceSoFar, ResumeState
from cluster.router.rows.stage_times import StageTimes


def emit_to(stream: JournaledStream) -> EmitOf:
    """Puts the events of each choice into the stream, and the decode replica when it changes."""

    def emit_of(state: ResumeState) -> Emit:
        told = state.decode_replica if state.output else ""

        def emit(event: Scored | Tokens | Progress) -> None:
            nonlocal told
            first = None
            if isinstance(event, Tokens) and state.decode_replica != told:
                told, first = state.decode_replica, _stages(state)
            stream.put(event, first)

        return emit

    return emit_of


def so_far(built: RebuiltStream) -> list[ChoiceSoFar]:
    """How far each choice is, with its times on this host's clock."""
    began_s = arrived_s(built)
    return [_choice_so_far(began_s, built, one) for one in built.choices]


def arrived_s(built: RebuiltStream) -> float:
    """When the request arrived, on this host's monotonic clock."""
    return time.monotonic() - max(0.0, time.time() - built.arrived_at)


def _choice_so_far(began_s: float, built: RebuiltStream, choice: RebuiltChoice) -> ChoiceSoFar:
    first, output = choice.first, tuple(choice.output)
    if first is None:
        times = StageTimes(began_s, stopped_s=began_s + built.admitted_s)
        return ChoiceSoFar(output, choice.finished, times)
    earlier = _earlier(began_s, first, choice)
    times = StageTimes(
        began_s,
        first.queue_s,
        first.prefill_s,
        first.ttft_s,
        cached_tokens=first.cached_tokens,
        prefill_share_s=first.prefill_share_s,
        prefilled_by=first.prefill_replica,
        sent_s=began_s + first.sent_s,
        stopped_s=earlier[-1][0],
        route="local" if choice.local else "handed_over",
    )
    return ChoiceSoFar(output, choice.finished, times, first.decode_replica, earlier)


def _stages(state: ResumeState) -> FirstTokenStages:
    times = state.times
    return FirstTokenStages(
        times.queue_s,
        times.prefill_s,
        times.ttft_s,
        times.cached_tokens,
        state.decode_replica,
        times.prefilled_by,
        times.prefill_share_s,
        0.0 if times.sent_s is None else times.sent_s - times.began_s,
    )


def _earlier(
    began_s: float, first: FirstTokenStages, choice: RebuiltChoice
) -> tuple[tuple[float, Tokens], ...]:
    """The events with tokens of a choice, with their times on this host's monotonic clock.

    Clocks differ: none of them comes before an earlier one, or later than now.
    """
    now, found = time.monotonic(), []
    last_s = min(now, began_s + first.ttft_s)
    for after_s, tokens in choice.events:
        last_s = max(last_s, min(now, began_s + after_s))
        found.append((last_s, tokens))
    return tuple(found)
