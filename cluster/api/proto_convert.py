"""The API's requests and events as `tandem.v1` messages, and back.

A client's message becomes a GenerateRequest, or an InvalidRequest that names its field. The router
checks the ranges of the sampling, the model and the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.api.chats.proto_convert import chat_from_proto, deltas_to_proto
from cluster.api.prompts import Prompt, ScorePrompt
from cluster.api.requests import (
    Event,
    GenerateRequest,
    Heartbeat,
    ModelCard,
    ResumeRequest,
    Scored,
)
from cluster.api.tracing import NO_TRACE, Trace
from cluster.api.validation import (
    check_choices,
    check_have,
    check_name,
    check_request_id,
    check_stream_id,
    check_tenant,
    text_prompt,
    token_prompt,
)
from engine.errors import Internal, InvalidRequest
from engine.kv.prefix_digest import DEFAULT_TENANT
from protos.convert import (
    sampling_from_proto,
    sampling_to_proto,
    tokens_to_proto,
    valid_text,
)
from tandem_client.events import (
    Progress,
    Resumability,
    Started,
    Summary,
    Tokens,
)
from tandem_client.messages import CHOICE_FIELDS, STAGES, request_message
from tandem_client.protos import inference_pb2

_REQUEST_FIELDS = (
    "request_id",
    "model",
    "endpoint",
    "n",
    "tenant",
    "progress",
    "resumable",
    "timing",
)


def request_to_proto(request: GenerateRequest) -> inference_pb2.GenerateRequest:
    """`request` for the wire; raises InvalidRequest for a value that the wire cannot carry."""
    if isinstance(request.prompt, ScorePrompt):
        raise InvalidRequest("a text to be scored is no prompt", field="prompt")
    values = {name: getattr(request, name) for name in _REQUEST_FIELDS}
    return request_message(request.prompt, values, sampling_to_proto(request.sampling))


def request_from_proto(
    wire: inference_pb2.GenerateRequest,
    tenant_of: Callable[[str], str] = lambda named: named,
    arrived_s: float | None = None,
    trace: Trace = NO_TRACE,
) -> GenerateRequest:
    """The request in `wire`; raises InvalidRequest.

    `tenant_of` turns the tenant that it names into the tenant of its caller. `arrived_s` and
    `trace` are as in GenerateRequest.
    """
    n, sampling = check_choices(wire.n or 1), sampling_from_proto(wire.sampling)
    return GenerateRequest(
        prompt=_take_prompt(wire),
        sampling=sampling,
        n=n,
        request_id=check_request_id(wire.request_id) or (trace.request_id and trace.new_id()),
        model=check_name(wire.model, "model"),
        endpoint=check_name(wire.endpoint, "endpoint"),
        tenant=tenant_of(check_tenant(wire.tenant or DEFAULT_TENANT)),
        progress=wire.progress,
        arrived_s=arrived_s,
        resumable=wire.resumable,
        timing=wire.timing,
        trace=trace,
    )


def resume_from_proto(wire: inference_pb2.ResumeRequest) -> ResumeRequest:
    """The request in `wire`, of the default tenant; raises InvalidRequest."""
    return ResumeRequest(check_stream_id(wire.stream_id), check_have(wire.have))


def event_to_proto(event: Event) -> inference_pb2.GenerateEvent:
    """One event of a stream for the wire."""
    match event:
        case Tokens(choice, index, ids, text, finish_reason, sampled):
            run = tokens_to_proto(choice, index, ids, text, finish_reason, sampled)
            if event.reasoning:
                run.reasoning = valid_text(event.reasoning)
            if event.tool_calls:
                deltas_to_proto(event.tool_calls, run)
            return inference_pb2.GenerateEvent(tokens=run)
        case Started(request_id, model, prompt_tokens, seed, stream_id):
            started = inference_pb2.Started(
                request_id=request_id,
                model=model,
                prompt_tokens=prompt_tokens,
                seed=seed,
                stream_id=stream_id,
            )
            return inference_pb2.GenerateEvent(started=started)
        case Progress():
            return inference_pb2.GenerateEvent(progress=_progress_to_proto(event))
        case Heartbeat():
            return inference_pb2.GenerateEvent(heartbeat=inference_pb2.Heartbeat())
        case Resumability(suspended):
            resumability = inference_pb2.Resumability(suspended=suspended)
            return inference_pb2.GenerateEvent(resumability=resumability)
        case Summary():
            return inference_pb2.GenerateEvent(summary=_summary_to_proto(event))
        case Scored():
            raise Internal("a stream of tokens has no scores")


def model_to_proto(card: ModelCard) -> inference_pb2.Model:
    """A model card for the wire; the wire does not carry `created`."""
    return inference_pb2.Model(
        name=card.name,
        architecture=card.architecture,
        dtype=card.dtype,
        context_tokens=card.context_tokens,
        vocabulary=card.vocabulary,
        endpoints=card.endpoints,
    )


def _take_prompt(wire: inference_pb2.GenerateRequest) -> Prompt:
    match wire.WhichOneof("input"):
        case "text":
            return text_prompt(wire.text, "text")
        case "token_ids":
            return token_prompt(wire.token_ids.ids, "token_ids")
        case "chat":
            return chat_from_proto(wire.chat)
        case _:
            raise InvalidRequest("one of text, token_ids or chat is required", field="input")


def _progress_to_proto(progress: Progress) -> inference_pb2.Progress:
    wire = inference_pb2.Progress(
        choice=progress.choice,
        stage=STAGES[progress.stage],
        tokens=progress.tokens,
        total_tokens=progress.total_tokens,
    )
    if progress.position is not None:
        wire.position = progress.position
    if progress.wait_s is not None:
        wire.wait_s = progress.wait_s
    return wire


def _summary_to_proto(summary: Summary) -> inference_pb2.Summary:
    wire = inference_pb2.Summary(
        prompt_tokens=summary.prompt_tokens,
        completion_tokens=summary.completion_tokens,
        total_s=summary.total_s,
    )
    for choice in summary.choices:
        added = wire.choices.add(**{name: getattr(choice, name) for name in CHOICE_FIELDS})
        for one in choice.stages:
            added.stages.add(stage=one.stage, begin_s=one.begin_s, end_s=one.end_s)
    return wire
