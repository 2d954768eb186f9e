"""What all choices of a request share, and the sequence that a replica makes of one choice.

A router encodes prompt and sampling once for a request. It sends them once to each replica, and
each choice names them. So their cost on the wire does not grow with the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from engine.errors import Internal
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.lane import LANES, Lane
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scoring
from engine.types.sequence import Sequence as TokenSequence
from engine.types.urgency import Urgency
from protos import decode_pb2, prefill_pb2
from protos.convert import sampling_from_proto, sampling_to_proto

_URGENCY_TO_WIRE = {
    Urgency.PROMPTS: prefill_pb2.URGENCY_UNSPECIFIED,
    Urgency.PRESSED: prefill_pb2.URGENCY_PRESSED,
    Urgency.URGENT: prefill_pb2.URGENCY_URGENT,
}
_URGENCY_FROM_WIRE = {wire: urgency for urgency, wire in _URGENCY_TO_WIRE.items()}


@dataclass(frozen=True, eq=False, repr=False)
class SharedPrompt:
    """The token ids of a prompt and the complete sampling. Two prompts are equal only if identical.

    So a connection knows which calls share a prompt without a look at its tokens.
    """

    ids: tuple[int, ...]
    sampling: SamplingParams

    @cached_property
    def encoded(self) -> bytes:
        """The bytes for the wire, made once. InvalidRequest for sampling that they cannot carry."""
        sampling = sampling_to_proto(self.sampling)
        return prefill_pb2.SharedPrompt(ids=self.ids, sampling=sampling).SerializeToString()

    @classmethod
    def read(cls, encoded: bytes) -> Self:
        """The prompt in these bytes; raises DecodeError, or InvalidRequest for long lists."""
        wire = prefill_pb2.SharedPrompt.FromString(encoded)
        return cls(tuple(wire.ids), sampling_from_proto(wire.sampling))


def sequence_from_proto(
    request: prefill_pb2.PrefillRequest | decode_pb2.DecodeRequest, prompt: SharedPrompt
) -> TokenSequence:
    """The sequence of a router's request to a replica, owned by its transfer.

    A sequence with output has failed over from another replica, and no KV comes for it. Raises
    Internal where KV is to come as well: the first token would be there twice.
    """
    scoring, tokens = request.scoring, len(prompt.ids)
    output: Sequence[int] = ()
    window_s = None
    if isinstance(request, decode_pb2.DecodeRequest):
        output = request.output_ids
        window_s = request.batch_window_s if request.HasField("batch_window_s") else None
    if output and not request.local_prefill:
        raise Internal(f"{request.transfer}: output of its own, and KV with a first token to come")
    return TokenSequence(
        owner=request.transfer,
        tokens=[*prompt.ids, *output],
        prompt_tokens=tokens,
        sampling=prompt.sampling,
        choice=request.choice,
        tenant=request.tenant or DEFAULT_TENANT,
        lane=_lane(request.lane or "interactive"),
        ttft_budget_s=request.ttft_budget_s,
        urgency=_URGENCY_FROM_WIRE.get(request.urgency, Urgency.URGENT),
        batch_window_s=window_s,
        request_id=request.request_id,
        traceparent=request.traceparent,
        scoring=Scoring(scoring.first, scoring.top, tokens) if scoring.first else None,
    )


def urgency_to_proto(urgency: Urgency) -> prefill_pb2.Urgency:
    """`urgency` of a prompt for the wire."""
    return _URGENCY_TO_WIRE[urgency]


def _lane(name: str) -> Lane:
    for lane in LANES:
        if lane == name:
            return lane
    raise Internal(f"unknown lane {name!r}")
