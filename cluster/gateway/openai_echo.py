"""OpenAI's completions with `echo`: the prompt comes back, its tokens with log-probabilities.

This is how evaluation harnesses score texts: `max_tokens` 0 asks for the prompt alone, 1 for one
token more, which they ignore. Everything is computed in the prefill pool.
"""

from __future__ import annotations

import asyncio
import time

from cluster.api import Generator, ScorePrompt, TextPrompt
from cluster.api.scoring import ScoredText, score_all
from cluster.gateway.openai_chunks import COMPLETION, Json
from cluster.gateway.openai_requests import OpenAICall
from cluster.gateway.sse import dump_large
from engine.types.sequence import SampledToken


class EchoReply:
    """The reply to a call whose prompts are ScorePrompts; `longer`: with one more token each."""

    def __init__(
        self, call: OpenAICall, generator: Generator, *, logprobs: int | None, longer: bool
    ) -> None:
        self._call = call
        self._generator = generator
        self._logprobs = logprobs
        self._longer = longer

    async def whole(self) -> bytes:
        """The reply as JSON; raises a TandemError."""
        found = await score_all(self._generator, self._call.requests)
        # On a thread: thousands of tokens are looked up and written.
        return await asyncio.to_thread(lambda: dump_large(self._document(found)))

    def _document(self, found: list[ScoredText]) -> Json:
        prompt_tokens = sum(len(one.scored.ids) for one in found)
        completion_tokens = len(found) if self._longer else 0
        return {
            "id": COMPLETION.prefix + self._call.request_id,
            "object": COMPLETION.whole_object,
            "created": int(time.time()),
            "model": self._generator.model.name,
            "choices": [self._choice(index, one) for index, one in enumerate(found)],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "prompt_tokens_details": {
                    "cached_tokens": sum(one.timing.cached_tokens for one in found)
                },
            },
        }

    def _choice(self, index: int, one: ScoredText) -> Json:
        text = self._text(index, one)
        tokens = tokens_of(one)
        if self._longer:
            text += one.behind.text
            tokens += one.behind.tokens
        listing = None
        if self._logprobs is not None:
            offsets = self._generator.offsets()
            listing = COMPLETION.logprobs(tokens, self._generator.token_text, offsets)
        finish = one.behind.finish_reason if self._longer else "length"
        choice = COMPLETION.whole(index, text, listing, finish)
        if self._call.token_ids:
            choice["token_ids"] = [token.token for token in tokens]
        return choice

    def _text(self, index: int, one: ScoredText) -> str:
        """The prompt as the client sent it, or the text of its tokens."""
        prompt = self._call.requests[index].prompt
        if isinstance(prompt, ScorePrompt) and isinstance(prompt.prompt, TextPrompt):
            return prompt.prompt.text
        return self._generator.text(one.scored.ids)


def tokens_of(one: ScoredText) -> list[SampledToken]:
    """All tokens of a text, with log-probabilities for the scored tokens."""
    scored, scores = one.scored, one.scored.scores
    count = len(scores.logprobs)
    top = len(scores.top_ids) // count if count else 0
    tokens = [SampledToken(token) for token in scored.ids[: scored.first]]
    best = list(zip(scores.top_ids, scores.top_logprobs, strict=True))
    for index, token in enumerate(scored.ids[scored.first :]):
        candidates = tuple(best[index * top : (index + 1) * top])
        tokens.append(SampledToken(token, scores.logprobs[index], candidates))
    return tokens
