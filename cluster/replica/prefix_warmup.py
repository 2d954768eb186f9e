"""Computes prefixes before a request needs them, so that their KV is cached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from engine.errors import TandemError
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

log = logging.getLogger(__name__)

# The budget of a prefix: so long that every request comes first.
_BUDGET_S = 3600.0


async def warm(
    compute: Callable[[Sequence], Awaitable[None]],
    texts: Iterable[str],
    encode: Callable[[str], list[int]],
    block_size: int,
    context_tokens: int,
) -> None:
    """Compute each text as a prompt of the default tenant, one after the other.

    A text that fills no block, fills the context, or fails is logged and passed over.
    """
    for number, text in enumerate(texts):
        try:
            tokens = await asyncio.to_thread(encode, text)
            if not block_size <= len(tokens) < context_tokens:
                log.warning(
                    "kv.warm_prefixes[%d] was not computed: it has %d tokens; a block has %d, the "
                    "context %d",
                    *(number, len(tokens), block_size, context_tokens),
                )
                continue
            sampling = SamplingParams(temperature=0.0, max_tokens=1, seed=0)
            prompt = Sequence(f"warm.{number}", [*tokens], len(tokens), sampling)
            prompt.lane, prompt.ttft_budget_s = "batch", _BUDGET_S
            await compute(prompt)
            log.info("kv.warm_prefixes[%d] is cached: %d tokens", number, len(tokens))
        except TandemError as error:
            log.warning("kv.warm_prefixes[%d] was not computed: %s", number, error.message)
