"""The body of a request for a response, and the chat that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from cluster.api import ChatMessage, ChatPrompt, Prompt
from cluster.api.chats.tool_json import (
    ToolChoice,
    read_flat_tool_choice,
    read_flat_tools,
    read_template_kwargs,
)
from cluster.api.chats.tools import Tool, tool_use, with_effort
from cluster.api.grammar_json import only_one, read_text_format
from cluster.api.limits import MAX_METADATA, check_length
from cluster.api.validation import check_name, check_text
from cluster.gateway.openai_chunks import Json
from cluster.gateway.openai_fields import sift
from cluster.gateway.openai_requests import Effort, OpenAIRequest
from cluster.gateway.responses.input_items import read_input
from engine.errors import InvalidRequest, shown
from engine.types.grammar import Grammar
from engine.types.sampling_params import MAX_LOGPROBS, SamplingParams

# Fields of chats and completions that no response has.
_ABSENT = frozenset(
    {
        *("n", "max_tokens", "resumable", "return_token_ids", "response_format"),
        *("guided_json", "guided_regex", "guided_grammar", "guided_choice"),
    }
)
# Fields that do not change the answer here.
IGNORED = frozenset(
    {
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)
# Fields that would change the answer and are not supported, with the values that change nothing.
REFUSED: Mapping[str, tuple[object, ...]] = {
    "access_programs": (),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "previous_response_id": (),
    "conversation": (),
}
# Fields that name what OpenAI stores.
_STORED = ("previous_response_id", "conversation")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_KEY_CHARACTERS, _VALUE_CHARACTERS = 64, 512


def read_include(value: object) -> tuple[str, ...]:
    """`include`: a list of what else the response shall have."""
    if not isinstance(value, list):
        raise InvalidRequest(f"include must be a list, not {shown(value)}", field="include")
    check_length(value, len(_INCLUDES), "include", "entries")
    for index, entry in enumerate(value):
        if entry not in _INCLUDES:
            field = f"include[{index}]"
            message = f"{field} must be one of {', '.join(_INCLUDES)}, not {shown(entry)}"
            raise InvalidRequest(message, field=field)
    return tuple(value)


def read_metadata(value: object) -> dict[str, str]:
    """`metadata`: a few texts by name, which come back."""
    field = "metadata"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object, not {shown(value)}", field=field)
    check_length(value, MAX_METADATA, field, "pairs")
    for key, one in value.items():
        if not isinstance(one, str):
            message = f"{field}: the values must be strings, not {shown(one)}"
            raise InvalidRequest(message, field=field)
        check_length(check_text(key, field), _KEY_CHARACTERS, field, "characters in a key")
        check_length(check_text(one, field), _VALUE_CHARACTERS, field, "characters in a value")
    return value


def _given(value: object) -> object:
    """An object without the fields that are null."""
    if not isinstance(value, dict):
        return value
    return {name: one for name, one in value.items() if one is not None}


class TextFields(BaseModel):
    """`text` of a response."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Annotated[Grammar | None, PlainValidator(read_text_format)] = None
    verbosity: Literal["medium"] = "medium"


class ReasoningFields(BaseModel):
    """`reasoning` of a response. No summary is made: the reasoning itself is shown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseRequest(OpenAIRequest):
    """The body of `POST /v1/responses`."""

    input: Annotated[tuple[ChatMessage, ...], PlainValidator(read_input)]
    instructions: str = ""
    max_output_tokens: int | None = None
    text: Annotated[TextFields, BeforeValidator(_given)] = TextFields()
    tools: Annotated[tuple[Tool, ...], PlainValidator(read_flat_tools)] = ()
    tool_choice: Annotated[ToolChoice, PlainValidator(read_flat_tool_choice)] = ("auto", "")
    parallel_tool_calls: bool = True
    reasoning: Annotated[ReasoningFields, BeforeValidator(_given)] = ReasoningFields()
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    include: Annotated[tuple[str, ...], PlainValidator(read_include)] = ()
    truncation: Literal["disabled"] = "disabled"
    store: bool = True
    background: bool = False
    metadata: Annotated[dict[str, str], PlainValidator(read_metadata)] = Field(default_factory=dict)
    user: str = ""
    chat_template_kwargs: Annotated[str, PlainValidator(read_template_kwargs)] = ""

    @classmethod
    def read(cls, body: object) -> Self:
        """The request in a JSON document; raises InvalidRequest."""
        for name in _STORED:
            if isinstance(body, dict) and body.get(name) is not None:
                message = f"{name} is not supported: send the earlier items in input"
                raise InvalidRequest(message, field=name)
        found = super().read(body)
        found._check()
        return found

    @classmethod
    def fields(cls) -> frozenset[str]:
        """The names of the fields that a body may have."""
        return frozenset(cls.model_fields) - _ABSENT

    @property
    def has_logprobs(self) -> bool:
        """Whether the text of the answer comes with log-probabilities."""
        return self.top_logprobs > 0 or _LOGPROBS in self.include

    def echo(self, body: Mapping[str, Any]) -> Json:
        """What the response repeats of this request, whose JSON document is `body`."""
        text = body.get("text") or {}
        effort = self.reasoning.effort
        tools = zip(body.get("tools") or (), self.tools, strict=True)
        return {
            "background": self.background,
            "instructions": self.instructions or None,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "service_tier": "default",
            "store": self.background,
            "temperature": self.temperature,
            "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": [entry | {"type": "function", "strict": tool.strict} for entry, tool in tools],
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user or None,
        }

    @classmethod
    def _sifted(cls, body: Mapping[str, Any]) -> dict[str, Any]:
        return sift(body, cls.fields(), IGNORED, REFUSED)

    def _check(self) -> None:
        """Raise InvalidRequest where fields contradict."""
        check_name(self.user, "user")
        check_text(self.instructions, "instructions")
        if self.background and not self.store:
            raise InvalidRequest("background needs store", field="store")
        if self.background and self.has_logprobs:
            field = "top_logprobs" if self.top_logprobs else "include"
            raise InvalidRequest(f"{field}: no log-probabilities in the background", field=field)
        if self.background and self.timing:
            raise InvalidRequest("timing: no stages in the background", field="timing")

    def _prompts(self) -> tuple[Prompt, ...]:
        mode, named = self.tool_choice
        use = tool_use(self.tools, mode, named, self.parallel_tool_calls)
        kwargs = with_effort(self.chat_template_kwargs, self.reasoning.effort)
        first = (ChatMessage("system", self.instructions),) if self.instructions else ()
        return (ChatPrompt((*first, *self.input), use, kwargs),)

    def _sampling(self) -> SamplingParams:
        sampling = self._sampled(self.top_logprobs if self.has_logprobs else None)
        return replace(sampling, max_tokens=self.max_output_tokens)

    def _grammar(self) -> Grammar | None:
        own = {"structured_outputs": self.structured_outputs, "grammar": self.grammar}
        return only_one({"text.format": self.text.format} | own)
