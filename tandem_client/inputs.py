"""The prompts and options that the client accepts, and the messages of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from tandem_client.errors import InvalidRequest
from tandem_client.grammar import Grammar
from tandem_client.messages import request_message, sampling_message, unfit
from tandem_client.prompts import ChatMessage, ChatPrompt, Role, TextPrompt, TokenPrompt
from tandem_client.protos import inference_pb2

Message = ChatMessage | Mapping[str, str]
Text = str | Sequence[int]
Input = str | Sequence[int] | Sequence[Message] | TextPrompt | TokenPrompt | ChatPrompt


class Options(TypedDict, total=False):
    """The keyword arguments of `generate` and `complete`."""

    n: int
    request_id: str
    model: str
    endpoint: str
    tenant: str
    progress: bool
    resumable: bool
    timing: bool
    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    grammar: Grammar | None


_OF_REQUEST = ("n", "request_id", "model", "endpoint", "tenant", "progress", "resumable", "timing")


def generate_request(prompt: Input, options: Options) -> inference_pb2.GenerateRequest:
    """The request for a prompt. Raises InvalidRequest; TypeError for an unknown option."""
    sampling = dict(options)
    for name in sampling:
        if name not in Options.__annotations__:
            raise TypeError(f"an unexpected keyword argument: {name!r}")
    values = {name: sampling.pop(name) for name in _OF_REQUEST if name in sampling}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = (sampling["stop"],)
    return request_message(_prompt(prompt), values, sampling_message(sampling))


def resume_request(stream_id: str, have: Sequence[int]) -> inference_pb2.ResumeRequest:
    """The request for the rest of a stream; raises InvalidRequest."""
    if not stream_id:
        raise InvalidRequest("stream_id must not be empty", field="stream_id")
    try:
        return inference_pb2.ResumeRequest(stream_id=stream_id, have=have)
    except (TypeError, ValueError, OverflowError) as error:
        raise unfit("have", error) from None


def score_input(text: Text | tuple[Text, Text], name: str) -> inference_pb2.ScoreInput:
    """A text to be scored, or a text and its continuation; raises InvalidRequest."""
    wire = inference_pb2.ScoreInput()
    try:
        if not isinstance(text, tuple) or len(text) != 2 or isinstance(text[0], int):
            first, more = cast(Text, text), None
        else:
            first, more = text
        if isinstance(first, str):
            wire.text = first
        else:
            wire.token_ids.SetInParent()
            wire.token_ids.ids.extend(first)
        if isinstance(more, str):
            wire.continuation_text = more
        elif more is not None:
            wire.continuation_ids.SetInParent()
            wire.continuation_ids.ids.extend(more)
    except (TypeError, ValueError, OverflowError) as error:
        raise unfit(name, error) from None
    return wire


def _prompt(prompt: Input) -> TextPrompt | TokenPrompt | ChatPrompt:
    if isinstance(prompt, TextPrompt | TokenPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if prompt and isinstance(prompt[0], ChatMessage | Mapping):
        return ChatPrompt(
            tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(prompt))
        )
    return TokenPrompt(cast("tuple[int, ...]", tuple(prompt)))


def _message(entry: object, name: str) -> ChatMessage:
    if isinstance(entry, ChatMessage):
        return entry
    if not isinstance(entry, Mapping) or not {"role", "content"} <= entry.keys():
        raise InvalidRequest(f"{name} must have a role and a content", field=name)
    return ChatMessage(cast(Role, entry["role"]), entry["content"])
