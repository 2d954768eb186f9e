"""The grammars of a replica: compiled on a thread, before their requests enter the batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.errors import Overloaded, UnsupportedModel
from engine.grammar.cache import GrammarCache
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import CompiledGrammar
from engine.types.grammar import Grammar
from engine.types.sequence import Sequence

# Bounds. Each grammar took a router's process at most two seconds of a core.
_MOST_WAITING = 256
_WAIT_S = 60.0
# Bound: more than the process in which a router tries grammars has, so nothing overflows here.
_STACK_BYTES = 32 * 1024 * 1024


class GrammarStore:
    """Gives sequences their matchers; with no `compiler` no answer of the model has one."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._compiled: GrammarCache[CompiledGrammar] = GrammarCache()
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def prepare(self, sequence: Sequence) -> None:
        """Give the sequence the matcher of its grammar, if it has one.

        Raises InvalidRequest for a grammar that cannot be compiled, UnsupportedModel, and
        Overloaded.
        """
        sampling = sequence.sampling
        grammar, stops = sampling.grammar, bool(sampling.stop)
        if grammar is None:
            return
        compiled = self._compiled.get(sequence.tenant, grammar)
        if compiled is None or stops:
            compiled = await self._run(lambda: self._compile(sequence.tenant, grammar, stops))
        sequence.matcher = compiled.matcher(sampling.stop_token_ids, stops=stops)

    def _compile(self, tenant: str, grammar: Grammar, stops: bool) -> CompiledGrammar:
        """The compiled grammar, ready to know texts where there are `stops`."""
        compiled = self._compiled.get(tenant, grammar)
        if compiled is None:
            if self._compiler is None:
                raise UnsupportedModel("no answer of this model can follow a grammar")
            compiled = self._compiler.compile(grammar)
            self._compiled.put(tenant, grammar, compiled)
        if stops:
            compiled.know_texts()
        return compiled

    async def _run(self, work: Callable[[], CompiledGrammar]) -> CompiledGrammar:
        if self._waiting >= _MOST_WAITING:
            raise Overloaded(f"{_MOST_WAITING} grammars wait already", retry_after_s=1.0)
        if self._thread is None:
            self._thread = deep_thread("grammars", _STACK_BYTES)
        self._waiting += 1
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise Overloaded("grammars take too long to compile", retry_after_s=1.0) from None
        finally:
            self._waiting -= 1


def deep_thread(name: str, stack_bytes: int) -> ThreadPoolExecutor:
    """One thread with a stack of that size, which exists on return."""
    before = threading.stack_size(stack_bytes)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        thread.submit(int).result()
    finally:
        threading.stack_size(before)
    return thread
