"""Texts to be scored as `tandem.v1` messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from cluster.api.limits import MAX_CHOICES
from cluster.api.requests import GenerateRequest, ScorePrompt, TextPrompt, TokenPrompt
from cluster.api.scoring import ScoredText
from cluster.api.validation import check_name, check_tenant, text_prompt, token_prompt
from engine.errors import InvalidRequest, shown
from engine.types.sampling_params import MAX_LOGPROBS, SamplingParams
from engine.types.scores import Scores
from protos import inference_pb2
from protos.convert import valid_text

_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class TextScores:
    """The scores of one text for a client: `scores` are of the tokens from position `first` on.

    `ids` and `texts` have all tokens, `sum` adds up the scored ones. Times are in seconds.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    first: int
    scores: Scores
    sum: float
    cached_tokens: int
    queue_s: float
    prefill_s: float


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


def prompt_to_proto(prompt: ScorePrompt) -> inference_pb2.ScoreInput:
    """One text for the wire."""
    wire = inference_pb2.ScoreInput()
    if isinstance(prompt.prompt, TextPrompt):
        wire.text = prompt.prompt.text
    else:
        wire.token_ids.ids.extend(prompt.prompt.ids)
    if isinstance(prompt.continuation, TextPrompt):
        wire.continuation_text = prompt.continuation.text
    elif prompt.continuation is not None:
        wire.continuation_ids.ids.extend(prompt.continuation.ids)
    return wire


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


def scored_from_proto(wire: inference_pb2.Scored) -> TextScores:
    """The scores in `wire`."""
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


def score_prompt(text: object, top: int, field: str) -> ScorePrompt:
    """The prompt for a text, or for a text and its continuation; raises InvalidRequest."""
    if isinstance(text, tuple) and len(text) == 2 and not isinstance(text[0], int):
        return ScorePrompt(_one(text[0], field), _one(text[1], field), top)
    return ScorePrompt(_one(text, field), None, top)


def _one(text: object, field: str) -> TextPrompt | TokenPrompt:
    if isinstance(text, str):
        return text_prompt(text, field)
    if isinstance(text, Sequence):
        return token_prompt(text, field)
    raise InvalidRequest(f"{field} must be a text or token ids, not {shown(text)}", field=field)


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
