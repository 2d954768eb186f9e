"""The engine's value objects as protobuf, and back.

The public API and the pools share these conversions of sampling and tokens. A value that the wire
cannot carry raises InvalidRequest with its field. `SamplingParams.check` checks the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import Internal, InvalidRequest
from engine.types.sampling_params import SamplingParams, check_count
from engine.types.scores import Scores, Scoring
from engine.types.sequence import FinishReason, SampledToken
from protos import inference_pb2, prefill_pb2

_OPTIONAL = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logprobs",
)
# protobuf raises these for a value that it cannot hold.
_UNFIT = (TypeError, ValueError, OverflowError)
_FINISH_TO_WIRE: dict[FinishReason | None, inference_pb2.FinishReason] = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": inference_pb2.FINISH_REASON_STOP,
    "length": inference_pb2.FINISH_REASON_LENGTH,
}
_FINISH_FROM_WIRE = {wire: reason for reason, wire in _FINISH_TO_WIRE.items()}


class TokenRun(NamedTuple):
    """Consecutive tokens of one choice, field for field as `Tokens` carries them."""

    choice: int
    index: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    sampled: tuple[SampledToken, ...]


def sampling_to_proto(sampling: SamplingParams) -> inference_pb2.Sampling:
    """`sampling` for the wire; raises InvalidRequest where the wire cannot carry a value."""
    wire = inference_pb2.Sampling()
    for name in _OPTIONAL:
        value = getattr(sampling, name)
        if value is not None:
            _assign(wire, name, value)
    _assign(wire, "ignore_eos", sampling.ignore_eos)
    _extend(wire.stop, "stop", sampling.stop)
    _extend(wire.stop_token_ids, "stop_token_ids", sampling.stop_token_ids)
    try:
        wire.logit_bias.update(sampling.logit_bias)
    except _UNFIT as error:
        raise _unfit("logit_bias", error) from None
    return wire


def sampling_from_proto(wire: inference_pb2.Sampling) -> SamplingParams:
    """The sampling in `wire`; absent fields take their default. InvalidRequest for long lists."""
    for name in ("stop", "stop_token_ids", "logit_bias"):
        check_count(name, getattr(wire, name))
    given = {name: getattr(wire, name) for name in _OPTIONAL if wire.HasField(name)}
    if wire.logit_bias:
        given["logit_bias"] = dict(wire.logit_bias)
    return SamplingParams(
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
        ignore_eos=wire.ignore_eos,
        **given,
    )


def tokens_to_proto(
    choice: int,
    index: int,
    ids: Sequence[int],
    text: str,
    finish_reason: FinishReason | None,
    sampled: Sequence[SampledToken] = (),
) -> inference_pb2.Tokens:
    """A run of tokens for the wire; lone surrogates in `text` become U+FFFD.

    `sampled` has an entry for each id where log-probabilities are sent too, else it is empty.
    """
    wire = inference_pb2.Tokens(
        choice=choice,
        index=index,
        ids=ids,
        text=valid_text(text),
        finish_reason=_FINISH_TO_WIRE[finish_reason],
    )
    for token in sampled:
        entry = wire.logprobs.add(logprob=math.nan if token.logprob is None else token.logprob)
        for candidate, logprob in token.top:
            entry.top.add(id=candidate, logprob=logprob)
    return wire


def tokens_from_proto(wire: inference_pb2.Tokens) -> TokenRun:
    """The run of tokens in `wire`; raises Internal if it contradicts itself."""
    if wire.finish_reason not in _FINISH_FROM_WIRE:
        raise Internal(f"unknown finish reason {wire.finish_reason} in a token message")
    ids, sampled = tuple(wire.ids), ()
    if wire.logprobs:
        if len(wire.logprobs) != len(ids):
            raise Internal(f"{len(ids)} tokens came with {len(wire.logprobs)} log-probabilities")
        sampled = tuple(map(_with_logprob, ids, wire.logprobs))
    reason = _FINISH_FROM_WIRE[wire.finish_reason]
    return TokenRun(wire.choice, wire.index, ids, wire.text, reason, sampled)


def scores_to_proto(scoring: Scoring | None) -> prefill_pb2.Scores | None:
    """The collected scores for the wire; raises Internal where scores are missing."""
    if scoring is None:
        return None
    found = scoring.scores()
    return prefill_pb2.Scores(
        logprobs=found.logprobs, top_ids=found.top_ids, top_logprobs=found.top_logprobs
    )


def scores_from_proto(wire: prefill_pb2.Scores) -> Scores:
    """The scores in `wire`."""
    return Scores(list(wire.logprobs), list(wire.top_ids), list(wire.top_logprobs))


def valid_text(text: str) -> str:
    """`text` as the wire can carry it: surrogate pairs joined, lone surrogates as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _with_logprob(token: int, entry: inference_pb2.TokenLogprobs) -> SampledToken:
    logprob = None if math.isnan(entry.logprob) else entry.logprob
    return SampledToken(token, logprob, tuple((top.id, top.logprob) for top in entry.top))


def _assign(wire: inference_pb2.Sampling, name: str, value: object) -> None:
    try:
        setattr(wire, name, value)
    except _UNFIT as error:
        raise _unfit(name, error) from None


def _extend(field: object, name: str, values: Sequence[object]) -> None:
    try:
        field.extend(values)  # type: ignore[attr-defined]
    except _UNFIT as error:
        raise _unfit(name, error) from None


def _unfit(name: str, error: Exception) -> InvalidRequest:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InvalidRequest(f"{name}: {reason}", field=name)
