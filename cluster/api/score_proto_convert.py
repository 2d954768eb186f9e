"""Texts to be scored as `tandem.v1` messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized

from cluster.api.limits import MAX_CHOICES
from cluster.api.prompts import ScorePrompt
from cluster.api.requests import GenerateRequest
from cluster.api.scoring import ScoredText
from cluster.api.validation import check_name, check_tenant, text_prompt, token_prompt
from engine.errors import InvalidRequest
from engine.types.sampling_params import MAX_LOGPROBS, SamplingParams
from protos.convert import valid_text
from tandem_client.prompts import TextPrompt, TokenPrompt
from tandem_client.protos import inference_pb2

_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


def score_requests_from_proto(
    wire: inference_pb2.ScoreRequest, request_id: str, tenant: str
) -> list[GenerateRequest]:
    """One request of `tenant` for each text, with that id; raises InvalidRequest."""
    if wire.top > MAX_LOGPROBS:
        raise InvalidRequest(f"top must be at most {MAX_LOGPROBS}, not {wire.top}", field="top")
    _check_count(wire.inputs)
    check_name(wire.model, "model")
    check_name(wire.endpoint, "endpoint")
    check_tenant(tenant)
    prompts = [
        _prompt_from_proto(one, wire.top, f"inputs[{index}]")
        for index, one in enumerate(wire.inputs)
    ]
    return _requests(prompts, request_id, wire.model, wire.endpoint, tenant)


def scored_to_proto(one: ScoredText, token_text: Callable[[int], str]) -> inference_pb2.Scored:
    """One text's scores for the wire."""
    scored, scores = one.scored, one.scored.scores
    return inference_pb2.Scored(
        ids=scored.ids,
        texts=[valid_text(token_text(token)) for token in scored.ids],
        first=scored.first,
        logprobs=scores.logprobs,
        sum=one.sum,
        top_ids=scores.top_ids,
        top_logprobs=scores.top_logprobs,
        cached_tokens=one.timing.cached_tokens,
        queue_s=one.timing.queue_s,
        prefill_s=one.timing.prefill_s,
    )


def _prompt_from_proto(wire: inference_pb2.ScoreInput, top: int, field: str) -> ScorePrompt:
    kind, more = wire.WhichOneof("input"), wire.WhichOneof("continuation")
    if kind is None:
        raise InvalidRequest(f"{field}: one of text or token_ids is required", field=field)
    if more is not None and (kind == "text") != (more == "continuation_text"):
        raise InvalidRequest(f"{field}: both must be texts or both token ids", field=field)
    prompt: TextPrompt | TokenPrompt
    continuation: TextPrompt | TokenPrompt | None = None
    if kind == "text":
        prompt = text_prompt(wire.text, f"{field}.text")
        if more is not None:
            continuation = text_prompt(wire.continuation_text, f"{field}.continuation_text")
    else:
        prompt = token_prompt(wire.token_ids.ids, f"{field}.token_ids")
        if more is not None:
            ids = wire.continuation_ids.ids
            continuation = token_prompt(ids, f"{field}.continuation_ids")
    return ScorePrompt(prompt, continuation, top)


def _check_count(inputs: Sized) -> None:
    if not 1 <= len(inputs) <= MAX_CHOICES:
        raise InvalidRequest(
            f"inputs must be 1 to {MAX_CHOICES} texts, not {len(inputs)}", field="inputs"
        )


def _requests(
    prompts: Sequence[ScorePrompt], request_id: str, model: str, endpoint: str, tenant: str
) -> list[GenerateRequest]:
    """A request for each text, numbered where there are several."""
    several = len(prompts) > 1
    return [
        GenerateRequest(
            prompt=prompt,
            sampling=_ONE_TOKEN,
            request_id=f"{request_id}-{index}" if several else request_id,
            model=model,
            endpoint=endpoint,
            tenant=tenant,
        )
        for index, prompt in enumerate(prompts)
    ]
