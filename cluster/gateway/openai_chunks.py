"""The two forms of OpenAI's replies: chat completions and completions, whole and in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, Protocol

from cluster.api import ChoiceSummary, Progress, Summary, Tokens, ToolCallDelta
from cluster.api.chats.tools import whole_calls
from cluster.api.requests import TokenOffsets
from engine.errors import Internal
from engine.text.token_names import bytes_of_name
from engine.types.sequence import FinishReason, SampledToken

TokenText = Callable[[int], str]
Json = dict[str, Any]
NO_PARTS: Json = {}
_LEAST_LOGPROB = -9999.0  # what OpenAI sends for a probability of zero


class Form(Protocol):
    """The form of a choice in one of the two APIs."""

    prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, choice: int) -> Json | None:
        """The chunk of a choice before its first text; None for no chunk."""
        ...

    def delta(
        self,
        choice: int,
        text: str,
        logprobs: Json | None,
        finish: FinishReason | None,
        parts: Json = NO_PARTS,
    ) -> Json:
        """A piece of a choice; `parts` has its reasoning and calls."""
        ...

    def ending(self, choice: int, finish: FinishReason) -> Json:
        """The last chunk of a choice, without text."""
        ...

    def whole(
        self,
        choice: int,
        text: str,
        logprobs: Json | None,
        finish: FinishReason | None,
        parts: Json = NO_PARTS,
    ) -> Json:
        """A finished choice; `parts` as in `delta`."""
        ...

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offsets: TokenOffsets
    ) -> Json:
        """The listing of `tokens`; `offsets` say where in the text they begin."""
        ...


class ChatForm:
    """`chat.completion` and `chat.completion.chunk`."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choice: int) -> Json | None:
        """The role, with empty content."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(
        self,
        choice: int,
        text: str,
        logprobs: Json | None,
        finish: FinishReason | None,
        parts: Json = NO_PARTS,
    ) -> Json:
        """A piece of the message."""
        delta = {"content": text} | parts if text or not parts else parts
        return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def ending(self, choice: int, finish: FinishReason) -> Json:
        """The reason, with an empty delta."""
        return {"index": choice, "delta": {}, "logprobs": None, "finish_reason": finish}

    def whole(
        self,
        choice: int,
        text: str,
        logprobs: Json | None,
        finish: FinishReason | None,
        parts: Json = NO_PARTS,
    ) -> Json:
        """The message."""
        content = None if "tool_calls" in parts and not text else text
        message = {"role": "assistant", "content": content, "refusal": None, **parts}
        return {"index": choice, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offsets: TokenOffsets
    ) -> Json:
        """One entry per token, with the best candidates."""
        content = [
            _entry(token.token, token.logprob, token_text)
            | {"top_logprobs": [_entry(top, value, token_text) for top, value in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionForm:
    """`text_completion`, whole and in chunks."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, choice: int) -> Json | None:
        """Nothing."""
        return None

    def delta(
        self,
        choice: int,
        text: str,
        logprobs: Json | None,
        finish: FinishReason | None,
        parts: Json = NO_PARTS,
    ) -> Json:
        """A piece of the text; whole and piece look the same."""
        return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}

    whole = delta

    def ending(self, choice: int, finish: FinishReason) -> Json:
        """The reason, with an empty text."""
        return self.delta(choice, "", None, finish)

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offsets: TokenOffsets
    ) -> Json:
        """Parallel lists: texts, log-probabilities, best candidates, offsets in the text."""
        return {
            "tokens": [token_text(token.token) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [
                None if token.logprob is None else _best(token, token_text) for token in tokens
            ],
            "text_offset": [offsets.push(token.token) for token in tokens],
        }


@dataclass(slots=True)
class UsageCount:
    """The tokens and the times of all prompts of a reply, from their summaries."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    summaries: int = 0
    timed: list[tuple[int, Summary]] = field(default_factory=list)

    def add(self, summary: Summary, prompt_index: int = 0) -> None:
        """Add the tokens of the prompt of that number."""
        self.summaries += 1
        self.timed.append((prompt_index, summary))
        self.prompt_tokens += summary.prompt_tokens
        self.completion_tokens += summary.completion_tokens
        self.cached_tokens += summary.cached_tokens

    def check(self, prompts: int) -> None:
        """Raise Internal where the summary of a prompt is missing."""
        if self.summaries != prompts:
            raise Internal("the reply ended early")

    def json(self) -> Json:
        """`usage` in OpenAI's form."""
        details = {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        return usage_json(self.prompt_tokens, self.completion_tokens) | details

    def timing(self, n: int) -> Json:
        """`timing`: the stages of each choice, in seconds since the request arrived.

        A prompt has `n` choices.
        """
        choices = [
            timing_json(one, number * n + one.choice)
            for number, summary in sorted(self.timed, key=itemgetter(0))
            for one in summary.choices
        ]
        total_s = max((summary.total_s for _, summary in self.timed), default=0.0)
        return {"total_s": round(total_s, 6), "choices": choices}


CHAT = ChatForm()
COMPLETION = CompletionForm()


def usage_json(prompt_tokens: int, completion_tokens: int) -> Json:
    """`usage` in OpenAI's form, without details."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def timing_json(summary: ChoiceSummary, choice: int) -> Json:
    """The times of choice number `choice`, rounded to microseconds."""
    stages = [
        {"stage": one.stage, "begin_s": round(one.begin_s, 6), "end_s": round(one.end_s, 6)}
        for one in summary.stages
    ]
    return {
        "choice": choice,
        "prefill_replica": summary.prefill_replica,
        "decode_replica": summary.decode_replica,
        "ttft_s": round(summary.ttft_s, 6),
        "stages": stages,
    }


def progress_json(progress: Progress, choice: int) -> Json:
    """The progress of choice number `choice`, without the unknown fields."""
    known = {name: value for name, value in asdict(progress).items() if value is not None}
    if progress.stage in ("starting", "queued"):
        del known["tokens"], known["total_tokens"]
    if progress.wait_s is not None:
        known["wait_s"] = round(progress.wait_s, 3)
    return known | {"choice": choice}


def parts_json(event: Tokens) -> Json:
    """The reasoning and the pieces of calls of an event, without what it does not have."""
    parts: Json = {"reasoning_content": event.reasoning} if event.reasoning else {}
    if event.tool_calls:
        parts["tool_calls"] = [_call_json(call) for call in event.tool_calls]
    return parts


def whole_parts(reasoning: Sequence[str], calls: Sequence[ToolCallDelta]) -> Json:
    """The reasoning and the calls of a finished choice, from all their pieces."""
    parts: Json = {"reasoning_content": "".join(reasoning)} if any(reasoning) else {}
    if calls:
        parts["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for one in whole_calls(calls)
        ]
    return parts


def _call_json(call: ToolCallDelta) -> Json:
    """A piece of a call: the first has id, type and name, and each one arguments."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def finite(logprob: float | None) -> float | None:
    """A log-probability as a number that JSON can represent."""
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, _LEAST_LOGPROB)


def _entry(token: int, logprob: float | None, token_text: TokenText) -> Json:
    text = token_text(token)
    return {"token": text, "logprob": finite(logprob), "bytes": list(bytes_of_name(text))}


def _best(token: SampledToken, token_text: TokenText) -> dict[str, float | None]:
    """Candidates by text, the drawn one among them; of two with one text, the better."""
    found: dict[str, float | None] = {}
    for candidate, logprob in (*token.top, (token.token, token.logprob)):
        found.setdefault(token_text(candidate), finite(logprob))
    return found
