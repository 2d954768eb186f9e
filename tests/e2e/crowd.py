"""Requests of many at a time, each answer gathered and its order checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.api import Summary, Tokens
from tandem_client import Client
from tests.exactness import Case

Answer = tuple[tuple[int, ...], Summary | None]
OPTIONS = ("max_tokens", "temperature", "ignore_eos", "stop_token_ids", "seed", "top_p", "top_k")


async def crowd(
    client: Client, cases: Sequence[Case], at_once: int, timeout_s: float = 300
) -> list[Answer]:
    """The answers to all cases, `at_once` at a time; raises what any of them raises."""
    limit = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Answer:
        async with limit:
            return await answer(client, case, timeout_s)

    return await asyncio.gather(*(one(case) for case in cases))


async def answer(client: Client, case: Case, timeout_s: float = 300) -> Answer:
    """The tokens that came, each at its place, and the summary."""
    tokens: list[int] = []
    summary = None
    options = {name: getattr(case.sampling, name) for name in OPTIONS}
    async for event in client.generate(list(case.prompt), timeout_s=timeout_s, **options):
        if isinstance(event, Tokens):
            assert event.index == len(tokens)
            tokens += [token.token for token in event.tokens]
        elif isinstance(event, Summary):
            summary = event
    return tuple(tokens), summary
