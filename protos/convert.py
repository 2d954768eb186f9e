"""The engine's value objects as protobuf, and back.

The public API and the pools share these conversions of sampling and tokens. A value that the wire
cannot carry raises InvalidRequest with its field. `SamplingParams.check` checks the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.errors import InvalidRequest
from engine.types.grammar import GRAMMAR_KINDS, Grammar, choice_grammar
from engine.types.sampling_params import SamplingParams, check_count
from engine.types.scores import Scores, Scoring
from engine.types.sequence import FinishReason, SampledToken
from protos import prefill_pb2
from tandem_client.messages import FINISH_REASONS, sampling_message
from tandem_client.protos import inference_pb2

# Absent in a message where they have their default.
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
_LISTS = ("stop", "stop_token_ids", "shown_token_ids")
_SAMPLING = (*_OPTIONAL, *_LISTS, "ignore_eos", "logit_bias", "grammar")


def sampling_to_proto(sampling: SamplingParams) -> inference_pb2.Sampling:
    """`sampling` for the wire; raises InvalidRequest where the wire cannot carry a value."""
    return sampling_message({name: getattr(sampling, name) for name in _SAMPLING})


def sampling_from_proto(wire: inference_pb2.Sampling) -> SamplingParams:
    """The sampling in `wire`; absent fields take their default. InvalidRequest for long lists."""
    for name in (*_LISTS, "logit_bias"):
        check_count(name, getattr(wire, name))
    given = {name: getattr(wire, name) for name in _OPTIONAL if wire.HasField(name)}
    if wire.logit_bias:
        given["logit_bias"] = dict(wire.logit_bias)
    return SamplingParams(
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
        shown_token_ids=tuple(wire.shown_token_ids),
        ignore_eos=wire.ignore_eos,
        grammar=grammar_from_proto(wire.grammar) if wire.HasField("grammar") else None,
        **given,
    )


def grammar_from_proto(wire: inference_pb2.Grammar) -> Grammar:
    """The grammar in `wire`; InvalidRequest where it is empty or too long."""
    if wire.HasField("choices"):
        grammar = choice_grammar(list(wire.choices.texts))
    else:
        kind = next((one for one in GRAMMAR_KINDS if one == wire.WhichOneof("grammar")), None)
        if kind is None:
            raise InvalidRequest("grammar has no text", field="grammar")
        grammar = Grammar(kind, getattr(wire, kind))
    grammar.check_size()
    return grammar


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
        finish_reason=FINISH_REASONS[finish_reason],
    )
    for token in sampled:
        entry = wire.logprobs.add(logprob=math.nan if token.logprob is None else token.logprob)
        for candidate, logprob in token.top:
            entry.top.add(id=candidate, logprob=logprob)
    return wire


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
