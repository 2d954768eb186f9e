"""Placement where prompts and streams share a device. Pure, and optional.

A deployment whose prefill replicas have devices of their own never enters this module. On a shared
device three things depend on each other:

- A prompt takes longer while streams get their tokens, so its cost has a factor for each urgency.
- A prompt is planned with the least urgency at which it is on time, so that streams wait no longer
  than they must.
- A decode replica computes a short prompt itself while no prefill replica uses the device. Two
  prompts at once, or a prompt and a step, take longer than one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cluster.placement.candidate import PlacementCandidate, PlacementQuery
from cluster.replica_record import ReplicaRecord
from engine.scheduling.non_negative_fit import MEMORY, TRUSTED_AFTER, NonNegativeFit
from engine.types.urgency import Urgency

# Tuned: how many times as long a prompt may take where a prefill replica begins beside it.
_AT_MOST_SLOWER = 2.0
# Tuned: the part of the streams' extra time that a higher urgency leaves before it was observed.
_UNSEEN_PART = 0.5

_BESIDE_STREAMS = (Urgency.PROMPTS, Urgency.PRESSED, Urgency.URGENT)
# Numerics: usual tokens of a prompt for which the start value, no slowdown, was guessed.
_TYPICAL_TOKENS = (128.0, 128.0, 128.0)


class StreamSlowdown:
    """The slowdown of prompts beside streams, as more factors of a fit: one per urgency."""

    def __init__(self, fit: NonNegativeFit) -> None:
        fit.add_features(_TYPICAL_TOKENS)
        self._fit = fit
        self._seen = dict.fromkeys(_BESIDE_STREAMS, 0.0)

    def features(self, tokens: float, urgency: Urgency) -> tuple[float, ...]:
        """The features of a prompt, behind the others of the fit."""
        return tuple(tokens * (urgency is one) for one in _BESIDE_STREAMS)

    def fitted(self, features: Sequence[float]) -> None:
        """Count features that the fit has learned.

        The count fades as the fit forgets. Without observations the factor of an urgency would
        drift to that of the other urgencies.
        """
        for place, one in enumerate(_BESIDE_STREAMS):
            seen = place < len(features) and features[place] > 0
            self._seen[one] = MEMORY * self._seen[one] + seen

    def seconds(self, alone_s: float, tokens: float, urgency: Urgency) -> float:
        """The seconds of a prompt that takes `alone_s` without streams.

        A higher urgency never takes longer, though it was observed in worse hours.
        """
        beside, *more = self._fit.factors[-len(_BESIDE_STREAMS) :]
        found_s = alone_s + beside * tokens
        for one, factor in zip(_BESIDE_STREAMS[1:urgency], more, strict=False):
            if self._seen[one] < TRUSTED_AFTER:
                found_s = (1 - _UNSEEN_PART) * alone_s + _UNSEEN_PART * found_s
            else:
                found_s = min(found_s, alone_s + factor * tokens)
        return found_s


def least_urgent(
    best: Callable[[PlacementQuery], PlacementCandidate], query: PlacementQuery
) -> PlacementCandidate:
    """The best candidate at the least urgency, from the query's on, at which it is in its budget.

    A prompt that is late at every urgency keeps the query's urgency if it is feasible there.
    """
    first = found = best(query)
    if query.request.batch:
        return first
    for urgency in range(query.urgency + 1, Urgency.URGENT + 1):
        if found.is_in_budget:
            return found
        found = best(replace(query, urgency=Urgency(urgency)))
    return found if found.is_in_budget or not first.forecast.feasible else first


def device_use(
    prefill: Iterable[ReplicaRecord], is_busy: Callable[[ReplicaRecord], bool], least: Urgency
) -> dict[str, bool]:
    """The named devices of the prefill replicas, and whether prompts are computed there.

    All prefill replicas soon compute where the `least` urgency says that prompts wait.
    """
    found: dict[str, bool] = {}
    for record in prefill:
        if record.device:
            busy = least > Urgency.PROMPTS or is_busy(record)
            found[record.device] = busy or found.get(record.device, False)
    return found


def is_local_prefill(
    here: PlacementCandidate, elsewhere: PlacementCandidate, requests: int, *, busy: bool
) -> bool:
    """Whether a decode replica with so many requests computes the prompt on a shared device.

    It computes a prompt that it has mostly cached. It computes a short prompt while it has streams
    and no prefill replica is `busy` on the device.
    """
    if here.cached > elsewhere.cached and here.cached >= here.missing:
        return True
    if busy or not requests:
        return False
    # On another device the prompt would slow no steps down, so it is better computed there.
    same = here.record.device == elsewhere.record.device and here.cached >= elsewhere.cached
    # The wait is no longer than the prompt itself, so a prompt behind it is on time where it is.
    soon = here.forecast.work_s <= here.alone_s
    return same and soon and here.is_on_time(_AT_MOST_SLOWER)
