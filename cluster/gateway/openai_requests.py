"""OpenAI's requests as strict models, and their requests to a Generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    Prompt,
    ScorePrompt,
    TextPrompt,
    TokenPrompt,
)
from cluster.api.chats.tool_json import (
    ToolChoice,
    read_template_kwargs,
    read_tool_choice,
    read_tools,
)
from cluster.api.chats.tools import Tool, tool_use, with_effort
from cluster.api.grammar_json import (
    only_one,
    read_grammar,
    read_own_grammar,
    read_response_format,
    read_structured_outputs,
)
from cluster.api.limits import MAX_CHOICES
from cluster.api.tracing import NO_TRACE, Trace
from cluster.api.validation import check_choices, check_name, check_request_id, check_tenant
from cluster.gateway.openai_fields import (
    first_fault,
    read_logit_bias,
    read_messages,
    read_prompts,
    read_stop,
    read_stop_token_ids,
    read_stream_options,
    sift,
)
from engine.errors import InvalidRequest, shown
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.grammar import Grammar
from engine.types.sampling_params import MAX_LOGPROBS, SamplingParams

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
# The fields that give the answer a grammar.
_GRAMMARS = (
    *("response_format", "structured_outputs", "grammar"),
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice"),
)


def _guided(name: str) -> PlainValidator:
    """Reads vLLM's older field `guided_...` of that kind."""
    return PlainValidator(lambda value: read_grammar(name, value, f"guided_{name}"))


@dataclass(frozen=True, slots=True)
class OpenAICall:
    """One HTTP request for tokens: a GenerateRequest per prompt, and the form of the reply."""

    requests: tuple[GenerateRequest, ...]
    request_id: str
    stream: bool
    include_usage: bool
    token_ids: bool = False
    continuous_usage: bool = False
    timing: bool = False

    @property
    def n(self) -> int:
        """Choices per prompt; a choice's number is prompt * n + its own."""
        return self.requests[0].n


class OpenAIRequest(BaseModel):
    """The fields of all APIs, with the extensions that OpenAI's client sends as `extra_body`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = ""
    n: int = 1
    stream: bool = False
    stream_options: Annotated[dict[str, bool] | None, PlainValidator(read_stream_options)] = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[dict[int, float], PlainValidator(read_logit_bias)] = {}
    seed: int | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(read_stop)] = ()
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: Annotated[tuple[int, ...], PlainValidator(read_stop_token_ids)] = ()
    ignore_eos: bool = False
    endpoint: str = ""
    request_id: str = ""
    progress: bool = False
    resumable: bool = False
    timing: bool = False
    return_token_ids: bool = False
    response_format: Annotated[Grammar | None, PlainValidator(read_response_format)] = None
    structured_outputs: Annotated[Grammar | None, PlainValidator(read_structured_outputs)] = None
    grammar: Annotated[Grammar | None, PlainValidator(read_own_grammar)] = None
    guided_json: Annotated[Grammar | None, _guided("json")] = None
    guided_regex: Annotated[Grammar | None, _guided("regex")] = None
    guided_grammar: Annotated[Grammar | None, _guided("grammar")] = None
    guided_choice: Annotated[Grammar | None, _guided("choice")] = None

    @classmethod
    def read(cls, body: object) -> Self:
        """The request in a JSON document; raises InvalidRequest."""
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body must be a JSON object, not {shown(body)}")
        try:
            return cls.model_validate(cls._sifted(body))
        except ValidationError as error:
            raise first_fault(error) from None

    @classmethod
    def _sifted(cls, body: Mapping[str, Any]) -> dict[str, Any]:
        return sift(body, cls.model_fields)

    def call(
        self,
        request_id: str,
        tenant: str = DEFAULT_TENANT,
        arrived_s: float | None = None,
        trace: Trace = NO_TRACE,
    ) -> OpenAICall:
        """The call of `tenant`; `request_id` is used if the request has no id.

        `arrived_s` and `trace` are as in GenerateRequest.
        """
        name = check_request_id(self.request_id) or request_id
        for field in ("stream_options", "progress", "resumable"):
            if getattr(self, field) not in (None, False) and not self.stream:
                raise InvalidRequest(f"{field} is allowed with stream only", field=field)
        options = self.stream_options or {}
        include_usage = options.get("include_usage", False)
        return OpenAICall(
            requests=self._requests(name, tenant, arrived_s, trace),
            request_id=name,
            stream=self.stream,
            include_usage=include_usage,
            token_ids=self.return_token_ids,
            continuous_usage=include_usage and options.get("continuous_usage_stats", False),
            timing=self.timing,
        )

    def _requests(
        self, name: str, tenant: str, arrived_s: float | None, trace: Trace
    ) -> tuple[GenerateRequest, ...]:
        """One request for each prompt, numbered where there are several."""
        prompts = self._prompts()
        if self.resumable and len(prompts) > 1:
            raise InvalidRequest("resumable is allowed with one prompt only", field="resumable")
        total = len(prompts) * check_choices(self.n)
        if total > MAX_CHOICES:
            raise InvalidRequest(
                f"prompt: prompts times n must be at most {MAX_CHOICES}, not {total}",
                field="prompt",
            )
        request = GenerateRequest(
            prompt=prompts[0],
            sampling=self._sampling(),
            n=self.n,
            request_id=name,
            model=check_name(self.model, "model"),
            endpoint=check_name(self.endpoint, "endpoint"),
            tenant=check_tenant(tenant),
            progress=self.progress,
            resumable=self.resumable,
            timing=self.timing,
            arrived_s=arrived_s,
            trace=trace,
        )
        if len(prompts) == 1:
            return (request,)
        return tuple(
            replace(request, prompt=prompt, request_id=f"{name}-{index}")
            for index, prompt in enumerate(prompts)
        )

    def _prompts(self) -> tuple[Prompt, ...]:
        raise NotImplementedError

    def _sampling(self) -> SamplingParams:
        raise NotImplementedError

    def _sampled(self, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=_unsigned(self.seed),
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            grammar=self._grammar(),
        )

    def _grammar(self) -> Grammar | None:
        """The grammar of the answer, in whichever field."""
        return only_one({name: getattr(self, name) for name in _GRAMMARS})


class ChatRequest(OpenAIRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[tuple[ChatMessage, ...], PlainValidator(read_messages)]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: Annotated[tuple[Tool, ...], PlainValidator(read_tools)] = ()
    tool_choice: Annotated[ToolChoice, PlainValidator(read_tool_choice)] = ("auto", "")
    parallel_tool_calls: bool = True
    chat_template_kwargs: Annotated[str, PlainValidator(read_template_kwargs)] = ""
    reasoning_effort: Effort | None = None

    def _prompts(self) -> tuple[Prompt, ...]:
        mode, named = self.tool_choice
        use = tool_use(self.tools, mode, named, self.parallel_tool_calls)
        kwargs = with_effort(self.chat_template_kwargs, self.reasoning_effort)
        return (ChatPrompt(self.messages, use, kwargs),)

    def _sampling(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs is allowed with logprobs only", field="top_logprobs")
        sampling = self._sampled((self.top_logprobs or 0) if self.logprobs else None)
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise InvalidRequest(
                    "max_tokens and max_completion_tokens differ; give one", field="max_tokens"
                )
            sampling = replace(sampling, max_tokens=self.max_completion_tokens)
        return sampling


class CompletionRequest(OpenAIRequest):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[tuple[TextPrompt | TokenPrompt, ...], PlainValidator(read_prompts)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None
    echo: bool = False

    def _prompts(self) -> tuple[Prompt, ...]:
        if not self.echo:
            return self.prompt
        if self.stream or self.n != 1 or self.timing:
            field = "stream" if self.stream else "n" if self.n != 1 else "timing"
            raise InvalidRequest(f"{field} is not supported with echo", field=field)
        return tuple(ScorePrompt(prompt, top=self.logprobs or 0) for prompt in self.prompt)

    def _sampling(self) -> SamplingParams:
        if self.best_of not in (None, self.n):
            raise InvalidRequest("best_of is not supported beyond n", field="best_of")
        sampling = self._sampled(self.logprobs)
        if not self.echo:
            return sampling
        if self.max_tokens not in (0, 1):
            raise InvalidRequest(
                "echo is for scoring: max_tokens must be given, as 0 or 1", field="max_tokens"
            )
        return replace(sampling, max_tokens=1)


def _unsigned(seed: int | None) -> int | None:
    """A seed as 64 bits without a sign; OpenAI's seeds are 64 bits with one."""
    return seed + 2**64 if seed is not None and -(2**63) <= seed < 0 else seed
