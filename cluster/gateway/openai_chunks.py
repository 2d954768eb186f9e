"""The two forms of OpenAI's replies: chat completions and completions, whole and in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from cluster.api import Progress, Summary
from engine.errors import Internal
from engine.types.sequence import FinishReason, SampledToken

TokenText = Callable[[int], str]
Json = dict[str, Any]
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
        self, choice: int, text: str, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        """A piece of a choice."""
        ...

    def whole(
        self, choice: int, text: str, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        """A finished choice."""
        ...

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offset: int
    ) -> tuple[Json, int]:
        """The listing of `tokens`, and where in the text the next one starts."""
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
        self, choice: int, text: str, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        """A piece of the message."""
        delta = {"content": text}
        return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def whole(
        self, choice: int, text: str, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        """The message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": choice, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offset: int
    ) -> tuple[Json, int]:
        """One entry per token, with the best candidates."""
        content = [
            _entry(token.token, token.logprob, token_text)
            | {"top_logprobs": [_entry(top, value, token_text) for top, value in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}, offset


class CompletionForm:
    """`text_completion`, whole and in chunks."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, choice: int) -> Json | None:
        """Nothing."""
        return None

    def delta(
        self, choice: int, text: str, logprobs: Json | None, finish: FinishReason | None
    ) -> Json:
        """A piece of the text; whole and piece look the same."""
        return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}

    whole = delta

    def logprobs(
        self, tokens: Sequence[SampledToken], token_text: TokenText, offset: int
    ) -> tuple[Json, int]:
        """Parallel lists: texts, log-probabilities, best candidates, offsets in the text."""
        texts = [token_text(token.token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        listing = {
            "tokens": texts,
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [
                None if token.logprob is None else _best(token, token_text) for token in tokens
            ],
            "text_offset": offsets,
        }
        return listing, offset


@dataclass(slots=True)
class UsageCount:
    """The tokens of all prompts of a reply, from their summaries."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    summaries: int = 0

    def add(self, summary: Summary) -> None:
        """Add the tokens of one prompt."""
        self.summaries += 1
        self.prompt_tokens += summary.prompt_tokens
        self.completion_tokens += summary.completion_tokens
        self.cached_tokens += summary.cached_tokens

    def check(self, prompts: int) -> None:
        """Raise Internal where the summary of a prompt is missing."""
        if self.summaries != prompts:
            raise Internal("the reply ended early")

    def json(self) -> Json:
        """`usage` in OpenAI's form."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


CHAT = ChatForm()
COMPLETION = CompletionForm()


def progress_json(progress: Progress, choice: int) -> Json:
    """The progress of choice number `choice`, without the unknown fields."""
    known = {name: value for name, value in asdict(progress).items() if value is not None}
    if progress.stage in ("starting", "queued"):
        del known["tokens"], known["total_tokens"]
    if progress.wait_s is not None:
        known["wait_s"] = round(progress.wait_s, 3)
    return known | {"choice": choice}


def finite(logprob: float | None) -> float | None:
    """A log-probability as a number that JSON can represent."""
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, _LEAST_LOGPROB)


def _entry(token: int, logprob: float | None, token_text: TokenText) -> Json:
    text = token_text(token)
    # A part of a character has no text of its own, and its bytes are not known here.
    found = None if "\ufffd" in text else list(text.encode(errors="replace"))
    return {"token": text, "logprob": finite(logprob), "bytes": found}


def _best(token: SampledToken, token_text: TokenText) -> dict[str, float | None]:
    """Candidates by text, the drawn one among them; of two with one text, the better."""
    found: dict[str, float | None] = {}
    for candidate, logprob in (*token.top, (token.token, token.logprob)):
        found.setdefault(token_text(candidate), finite(logprob))
    return found
