"""Scores the texts of one call, a few at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.api.event_streams import closing
from cluster.api.gather import together
from cluster.api.limits import MAX_NUMBERS
from cluster.api.prompts import ScorePrompt
from cluster.api.requests import GenerateRequest, Generator, Scored
from engine.errors import Internal, InvalidRequest
from tandem_client.events import ChoiceSummary, Started, Summary, Tokens

# Texts of one call that are scored at a time. The budget of a text begins with its scoring.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ScoredText:
    """The scores of one text, and `behind`, the token that was sampled after it."""

    scored: Scored
    behind: Tokens
    timing: ChoiceSummary

    @property
    def sum(self) -> float:
        """The logarithm of the probability of all scored tokens together."""
        return math.fsum(self.scored.scores.logprobs)


class _Size:
    """Counts the log-probabilities of an answer before they are computed."""

    def __init__(self) -> None:
        self._numbers = 0

    def add(self, request: GenerateRequest, tokens: int) -> None:
        top = request.prompt.top if isinstance(request.prompt, ScorePrompt) else 0
        self._numbers += tokens * (1 + top)
        if self._numbers > MAX_NUMBERS:
            raise InvalidRequest(
                f"the answer would have more than {MAX_NUMBERS} log-probabilities: "
                "ask for fewer texts, or for fewer of the likeliest tokens"
            )


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of leading ids that both sequences share."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (index for index, (left, right) in pairs if left != right)
    return next(differ, min(len(one), len(other)))


async def score_all(generator: Generator, requests: Sequence[GenerateRequest]) -> list[ScoredText]:
    """The scores of every request, each with a ScorePrompt, in their order.

    The first failure ends all of them and is raised, a TandemError. Cancelling ends all, too.
    """
    slots, size = asyncio.Semaphore(AT_ONCE), _Size()

    async def one(request: GenerateRequest) -> ScoredText:
        async with slots:
            return await _score(generator, request, size)

    return await together([one(request) for request in requests])


async def _score(generator: Generator, request: GenerateRequest, size: _Size) -> ScoredText:
    scored: Scored | None = None
    behind: Tokens | None = None
    async with closing(generator.generate(request)) as events:
        async for event in events:
            match event:
                case Started():
                    size.add(request, event.prompt_tokens)
                case Scored():
                    scored = event
                case Tokens():
                    behind = event
                case Summary() if scored is not None and behind is not None:
                    return ScoredText(scored, behind, event.choices[0])
    raise Internal("the scores ended early")
