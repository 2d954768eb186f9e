"""Checks the grammars of requests, off the event loop and in a process that may die by one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.errors import InvalidRequest, Overloaded
from engine.grammar.cache import GrammarCache
from engine.grammar.trial_process import TrialProcess
from engine.text.tokenizer import Tokenizer
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams

# Bounds: grammars that wait, of all tenants and of one. Each takes up to two seconds of a core.
_MOST_WAITING = 128
_MOST_OF_TENANT = 32
_WAIT_S = 30.0


class GrammarCheck:
    """Knows which grammars are sound for one model, whose end tokens are `eos_ids`."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        # What is wrong with a grammar; "" for one that is sound.
        self._known: GrammarCache[str] = GrammarCache()
        self._process: TrialProcess | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: Counter[str] = Counter()

    async def check(self, sampling: SamplingParams, tenant: str) -> None:
        """Return if the answer can follow the grammar, or if there is none.

        Raises InvalidRequest, Overloaded, Unavailable or Internal.
        """
        grammar = sampling.grammar
        if grammar is None:
            return
        grammar.check_size()
        for token in sampling.stop_token_ids:
            if not self._tokenizer.is_silent(token):
                message = f"stop_token_ids with {grammar.field} must be special tokens, not {token}"
                raise InvalidRequest(message, field="stop_token_ids")
        known = self._known.get(tenant, grammar)
        if known is None:
            known = await self._tried(grammar, tenant)
        if known:
            raise InvalidRequest(f"{grammar.field}: {known}", field=grammar.field)

    async def first(
        self, samplings: Sequence[SamplingParams], own: SamplingParams, tenant: str
    ) -> SamplingParams:
        """The first of these whose grammar is sound; raises what the last one does.

        Where the client's `own` grammar fails alone too, the error says where in it.
        """
        for sampling in samplings:
            try:
                sampling.check(self._vocabulary)
                await self.check(sampling, tenant)
                break
            except InvalidRequest:
                if sampling is samplings[-1]:
                    await self.check(own, tenant)
                    raise
        return sampling

    async def close(self) -> None:
        """End the process and the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._close)
            await asyncio.to_thread(thread.shutdown, cancel_futures=False)

    async def _tried(self, grammar: Grammar, tenant: str) -> str:
        if self._waiting[tenant] >= _MOST_OF_TENANT or self._waiting.total() >= _MOST_WAITING:
            raise Overloaded("too many grammars wait to be compiled", retry_after_s=1.0)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting[tenant] += 1
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._try, grammar, tenant
                )
        except TimeoutError:
            raise Overloaded("grammars take too long to compile", retry_after_s=1.0) from None
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def _try(self, grammar: Grammar, tenant: str) -> str:
        """What is wrong with a grammar, or ""; belongs to the thread."""
        known = self._known.get(tenant, grammar)
        if known is not None:  # the same came twice at once
            return known
        if self._process is None:
            self._process = TrialProcess(
                self._tokenizer.serialized(), self._vocabulary, self._eos_ids
            )
        try:
            self._process.try_grammar(grammar)
            known = ""
        except InvalidRequest as error:
            known = error.message.removeprefix(f"{grammar.field}: ")
        self._known.put(tenant, grammar, known)
        return known

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
