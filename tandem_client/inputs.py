"""The prompts and options that the client accepts, and their GenerateRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from cluster.api import ChatMessage, ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from cluster.api.validation import chat_message, text_prompt, token_prompt
from engine.errors import InvalidRequest, shown
from engine.types.sampling_params import SamplingParams

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


def generate_request(prompt: Input, options: Options) -> GenerateRequest:
    """The request for a prompt; raises InvalidRequest."""
    sampling: dict[str, Any] = dict(options)
    names = ("n", "request_id", "model", "endpoint", "tenant", "progress", "resumable")
    given = {name: sampling.pop(name) for name in names if name in sampling}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = (sampling["stop"],)
    return GenerateRequest(_prompt(prompt), SamplingParams(**sampling), **given)


def _prompt(prompt: Input) -> Prompt:
    if isinstance(prompt, TextPrompt | TokenPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return text_prompt(prompt, "prompt")
    if prompt and isinstance(prompt[0], ChatMessage | Mapping):
        return ChatPrompt(
            tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(prompt))
        )
    return token_prompt(prompt, "prompt")


def _message(entry: object, name: str) -> ChatMessage:
    if isinstance(entry, ChatMessage):
        return entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
        raise InvalidRequest(f"{name} must have a role and a content, not {shown(entry)}")
    return chat_message(entry.get("role"), entry["content"], name)
