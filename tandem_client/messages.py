"""Requests as `tandem.v1` messages, and the events of the answers back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tandem_client.errors import Internal, InvalidRequest
from tandem_client.events import (
    ChoiceSummary,
    Event,
    FinishReason,
    ModelInfo,
    Progress,
    Resumability,
    SampledToken,
    Scores,
    Stage,
    StageTime,
    Started,
    Summary,
    TextScores,
    Tokens,
)
from tandem_client.grammar import Grammar
from tandem_client.prompts import ChatPrompt, TextPrompt, TokenPrompt
from tandem_client.protos import inference_pb2
from tandem_client.tools import ToolCallDelta, ToolMode, ToolUse

STAGES: dict[Stage, inference_pb2.Progress.Stage] = {
    "starting": inference_pb2.Progress.STAGE_STARTING,
    "queued": inference_pb2.Progress.STAGE_QUEUED,
    "prefill": inference_pb2.Progress.STAGE_PREFILL,
    "decode": inference_pb2.Progress.STAGE_DECODE,
}
FINISH_REASONS: dict[FinishReason | None, inference_pb2.FinishReason] = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": inference_pb2.FINISH_REASON_STOP,
    "length": inference_pb2.FINISH_REASON_LENGTH,
    "tool_calls": inference_pb2.FINISH_REASON_TOOL_CALLS,
}
TOOL_CHOICES: dict[ToolMode, inference_pb2.ToolChoice] = {
    "auto": inference_pb2.TOOL_CHOICE_AUTO,
    "none": inference_pb2.TOOL_CHOICE_NONE,
    "required": inference_pb2.TOOL_CHOICE_REQUIRED,
}
_STAGE_NAMES = {number: name for name, number in STAGES.items()}
_FINISH_NAMES = {number: name for name, number in FINISH_REASONS.items()}
CHOICE_FIELDS = tuple(one.name for one in fields(ChoiceSummary) if one.name != "stages")
_LISTS = ("stop", "stop_token_ids", "shown_token_ids")
_MAPS = ("logit_bias",)
# protobuf raises these for a value that it cannot hold.
_UNFIT = (TypeError, ValueError, OverflowError, AttributeError)


def request_message(
    prompt: TextPrompt | TokenPrompt | ChatPrompt,
    values: Mapping[str, object],
    sampling: inference_pb2.Sampling,
) -> inference_pb2.GenerateRequest:
    """A request with these fields; raises InvalidRequest as `put_values`."""
    wire = inference_pb2.GenerateRequest(sampling=sampling)
    put_values(wire, values)
    try:
        match prompt:
            case TextPrompt(text):
                wire.text = text
            case TokenPrompt(ids):
                wire.token_ids.SetInParent()
                wire.token_ids.ids.extend(ids)
            case ChatPrompt():
                chat_to_proto(prompt, wire.chat)
    except _UNFIT as error:
        raise unfit("prompt", error) from None
    return wire


def chat_to_proto(chat: ChatPrompt, wire: inference_pb2.Chat) -> None:
    """Put a chat into its message; raises what protobuf does for a value that it cannot hold."""
    wire.SetInParent()
    for message in chat.messages:
        turn = wire.messages.add(
            role=message.role,
            content=message.content,
            tool_call_id=message.tool_call_id,
            reasoning=message.reasoning,
        )
        for call in message.tool_calls:
            turn.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
    for tool in chat.use.tools:
        wire.tools.add(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    wire.template_kwargs = chat.template_kwargs
    if chat.use != ToolUse(chat.use.tools):
        wire.tool_choice = TOOL_CHOICES[chat.use.mode]
        wire.named_tool = chat.use.named
        wire.single_call = not chat.use.parallel


def sampling_message(values: Mapping[str, object]) -> inference_pb2.Sampling:
    """Sampling parameters by name; raises InvalidRequest as `put_values`."""
    wire = inference_pb2.Sampling()
    put_values(wire, values)
    return wire


def put_values(wire: Any, values: Mapping[str, object]) -> None:
    """Set fields of a message; None leaves a field absent.

    Raises InvalidRequest, which names the field, where the wire cannot carry a value.
    """
    for name, value in values.items():
        try:
            if value is None:
                continue
            if name in _LISTS:
                getattr(wire, name).extend(value)
            elif isinstance(value, Grammar):
                getattr(wire, name).CopyFrom(grammar_to_proto(value))
            elif name in _MAPS:
                getattr(wire, name).update(value)
            else:
                setattr(wire, name, value)
        except _UNFIT as error:
            raise unfit(name, error) from None


def unfit(name: str, error: Exception) -> InvalidRequest:
    """The error for a value of this field that the wire cannot carry."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InvalidRequest(f"{name}: {reason}", field=name)


def grammar_to_proto(grammar: Grammar) -> inference_pb2.Grammar:
    """`grammar` for the wire; raises InvalidRequest where the wire cannot carry its text."""
    try:
        if grammar.kind == "choice":
            texts = json.loads(grammar.text)
            return inference_pb2.Grammar(choices=inference_pb2.Choices(texts=texts))
        wire = inference_pb2.Grammar()
        setattr(wire, grammar.kind, grammar.text)
        return wire
    except _UNFIT as error:
        raise unfit(grammar.field, error) from None


def event_from_proto(wire: inference_pb2.GenerateEvent) -> Event | None:
    """The event in `wire`; None for a heartbeat. Raises Internal where there is none."""
    match wire.WhichOneof("event"):
        case "tokens":
            return tokens_from_proto(wire.tokens)
        case "heartbeat":
            return None
        case "started":
            one = wire.started
            return Started(one.request_id, one.model, one.prompt_tokens, one.seed, one.stream_id)
        case "progress":
            return _progress_from_proto(wire.progress)
        case "resumability":
            return Resumability(wire.resumability.suspended)
        case "summary":
            return _summary_from_proto(wire.summary)
        case _:
            raise Internal("an event of a kind that this client does not know")


def tokens_from_proto(wire: inference_pb2.Tokens) -> Tokens:
    """The run of tokens in `wire`; raises Internal if it contradicts itself."""
    if wire.finish_reason not in _FINISH_NAMES:
        raise Internal(f"unknown finish reason {wire.finish_reason} in a token message")
    ids = tuple(wire.ids)
    sampled: tuple[SampledToken, ...] = ()
    if wire.logprobs:
        if len(wire.logprobs) != len(ids):
            raise Internal(f"{len(ids)} tokens came with {len(wire.logprobs)} log-probabilities")
        sampled = tuple(map(_with_logprob, ids, wire.logprobs))
    reason = _FINISH_NAMES[wire.finish_reason]
    calls: tuple[ToolCallDelta, ...] = ()
    if wire.tool_calls:
        calls = tuple(
            ToolCallDelta(one.index, one.id, one.name, one.arguments) for one in wire.tool_calls
        )
    return Tokens(wire.choice, wire.index, ids, wire.text, reason, sampled, wire.reasoning, calls)


def scored_from_proto(wire: inference_pb2.Scored) -> TextScores:
    """The scores of one text in `wire`."""
    return TextScores(
        ids=tuple(wire.ids),
        texts=tuple(wire.texts),
        first=wire.first,
        scores=Scores(list(wire.logprobs), list(wire.top_ids), list(wire.top_logprobs)),
        sum=wire.sum,
        cached_tokens=wire.cached_tokens,
        queue_s=wire.queue_s,
        prefill_s=wire.prefill_s,
    )


def model_from_proto(wire: inference_pb2.Model) -> ModelInfo:
    """The model in `wire`."""
    return ModelInfo(
        name=wire.name,
        architecture=wire.architecture,
        dtype=wire.dtype,
        context_tokens=wire.context_tokens,
        vocabulary=wire.vocabulary,
        endpoints=tuple(wire.endpoints),
    )


def _progress_from_proto(wire: inference_pb2.Progress) -> Progress:
    stage = _STAGE_NAMES.get(wire.stage)
    if stage is None:
        raise Internal("a stage of a kind that this client does not know")
    position = wire.position if wire.HasField("position") else None
    wait_s = wire.wait_s if wire.HasField("wait_s") else None
    return Progress(wire.choice, stage, wire.tokens, wire.total_tokens, position, wait_s)


def _summary_from_proto(wire: inference_pb2.Summary) -> Summary:
    choices = tuple(
        ChoiceSummary(
            **{name: getattr(choice, name) for name in CHOICE_FIELDS},
            stages=tuple(StageTime(one.stage, one.begin_s, one.end_s) for one in choice.stages),
        )
        for choice in wire.choices
    )
    return Summary(wire.prompt_tokens, wire.completion_tokens, choices, wire.total_s)


def _with_logprob(token: int, entry: inference_pb2.TokenLogprobs) -> SampledToken:
    logprob = None if math.isnan(entry.logprob) else entry.logprob
    return SampledToken(token, logprob, tuple((top.id, top.logprob) for top in entry.top))
