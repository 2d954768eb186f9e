"""Log-probabilities of a text's own tokens: the request for them and the result. Pure."""

from __future__ import annotations

from engine.errors import Internal
from tandem_client.events import Scores as Scores


class Scoring:
    """Requests the scores of the tokens `first`, `first` + 1, ... of a prompt, and collects them.

    `first` is at least 1, because token 0 has no token before it. Each score comes with the `top`
    likeliest tokens. A token is scored again where its sequence is computed again; the numbers are
    the same.
    """

    def __init__(self, first: int, top: int, prompt_tokens: int) -> None:
        if not 1 <= first <= prompt_tokens:
            raise Internal(f"scores from token {first} on of a prompt of {prompt_tokens}")
        self.first = first
        self.top = top
        self.end = prompt_tokens
        self._logprobs: list[float | None] = [None] * (prompt_tokens - first)
        self._top_ids = [0] * (top * (prompt_tokens - first))
        self._top_logprobs = [0.0] * (top * (prompt_tokens - first))

    def within(self, start: int, count: int) -> range:
        """The tokens that are scored where `count` tokens from `start` on are computed.

        To compute a token scores the token behind it.
        """
        return range(max(self.first, start + 1), min(self.end, start + count + 1))

    def take(self, start: int, scores: Scores) -> None:
        """Add the scores of consecutive tokens, the first of which is token `start`."""
        index, count = start - self.first, len(scores.logprobs)
        self._logprobs[index : index + count] = scores.logprobs
        tops = slice(index * self.top, (index + count) * self.top)
        self._top_ids[tops] = scores.top_ids
        self._top_logprobs[tops] = scores.top_logprobs

    def scores(self) -> Scores:
        """All scores; raises Internal where some are missing."""
        found = [logprob for logprob in self._logprobs if logprob is not None]
        if len(found) != len(self._logprobs):
            raise Internal(f"{len(self._logprobs) - len(found)} tokens were not scored")
        return Scores(found, list(self._top_ids), list(self._top_logprobs))
