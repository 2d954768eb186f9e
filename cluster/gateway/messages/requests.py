"""Anthropic's requests as strict models, and their requests to a Generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError

from cluster.api import ChatMessage, ChatPrompt, GenerateRequest
from cluster.api.chats.tools import NO_TOOLS, Tool, ToolUse
from cluster.api.grammar_json import only_one
from cluster.api.tracing import NO_TRACE, Trace
from cluster.api.validation import check_name, check_request_id, check_tenant
from cluster.gateway.messages.fields import (
    OutputConfig,
    Thinking,
    read_metadata,
    read_output_config,
    read_output_format,
    read_stop_sequences,
    read_thinking,
    template_kwargs,
)
from cluster.gateway.messages.tools import read_tool_choice, read_tools, used
from cluster.gateway.messages.turns import read_system, read_turns
from cluster.gateway.openai_fields import first_fault, sift
from engine.errors import InvalidRequest, shown
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams

# Fields of Anthropic's API that do not change the answer here.
_IGNORED = frozenset(
    {
        "cache_control",
        "diagnostics",
        "inference_geo",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
# Fields that would change the answer and are not supported, with the values that change nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
}


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """One request for a message. `thinking` says whether the message shows its reasoning.

    With `timing` the message has the stages of its answer.
    """

    request: GenerateRequest
    stream: bool
    thinking: bool
    timing: bool = False


@dataclass(frozen=True, slots=True)
class CountCall:
    """One request for the number of a chat's tokens, for a model by its name."""

    model: str
    prompt: ChatPrompt


class _MessagesPrompt(BaseModel):
    """The fields that become the prompt and the form of the answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    messages: Annotated[tuple[ChatMessage, ...], PlainValidator(read_turns)]
    system: Annotated[str, PlainValidator(read_system)] = ""
    tools: Annotated[tuple[Tool, ...], PlainValidator(read_tools)] = ()
    tool_choice: Annotated[ToolUse, PlainValidator(read_tool_choice)] = NO_TOOLS
    thinking: Annotated[Thinking | None, PlainValidator(read_thinking)] = None
    output_config: Annotated[OutputConfig, PlainValidator(read_output_config)] = OutputConfig()
    output_format: Annotated[Grammar | None, PlainValidator(read_output_format)] = None

    @classmethod
    def read(cls, body: object) -> Self:
        """The request in a JSON document; raises InvalidRequest."""
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body must be a JSON object, not {shown(body)}")
        try:
            return cls.model_validate(sift(body, cls.model_fields, _IGNORED, _REFUSED))
        except ValidationError as error:
            raise first_fault(error) from None

    def _prompt(self) -> ChatPrompt:
        system = (ChatMessage("system", self.system),) if self.system else ()
        kwargs = template_kwargs(self.thinking, self.output_config.effort)
        return ChatPrompt((*system, *self.messages), used(self.tools, self.tool_choice), kwargs)

    def _grammar(self) -> Grammar | None:
        named = {"output_config": self.output_config.grammar, "output_format": self.output_format}
        return only_one(named)


class CountRequest(_MessagesPrompt):
    """The body of `POST /v1/messages/count_tokens`."""

    def call(self) -> CountCall:
        """The call."""
        return CountCall(check_name(self.model, "model"), self._prompt())


class MessagesRequest(_MessagesPrompt):
    """The body of `POST /v1/messages`, with the extensions `endpoint`, `request_id`, `timing`."""

    max_tokens: int
    stop_sequences: Annotated[tuple[str, ...], PlainValidator(read_stop_sequences)] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stream: bool = False
    metadata: Annotated[None, PlainValidator(read_metadata)] = None
    endpoint: str = ""
    request_id: str = ""
    timing: bool = False

    def call(
        self,
        request_id: str,
        tenant: str = DEFAULT_TENANT,
        arrived_s: float | None = None,
        trace: Trace = NO_TRACE,
    ) -> MessagesCall:
        """The call of `tenant`; `request_id` is used if the request has no id.

        `arrived_s` and `trace` are as in GenerateRequest.
        """
        if self.messages[-1].role == "assistant":
            message = "messages: the last turn is of the assistant, and no answer continues it"
            raise InvalidRequest(message, field="messages")
        sampling = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            stop=self.stop_sequences,
            grammar=self._grammar(),
        )
        request = GenerateRequest(
            prompt=self._prompt(),
            sampling=sampling,
            request_id=check_request_id(self.request_id) or request_id,
            model=check_name(self.model, "model"),
            endpoint=check_name(self.endpoint, "endpoint"),
            tenant=check_tenant(tenant),
            arrived_s=arrived_s,
            timing=self.timing,
            trace=trace,
        )
        thinking = self.thinking is None or self.thinking.shown
        return MessagesCall(request, self.stream, thinking, self.timing)
