"""A replica compiles a grammar once, off its event loop, before its sequence enters the batch."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.errors import InvalidRequest, Overloaded, UnsupportedModel
from engine.grammar import store as module
from engine.grammar.store import GrammarStore
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests.engine.grammar.walks import new_compiler


class Counting:
    """Compiles as the real one, and counts."""

    def __init__(self):
        self.compiler, self.threads = new_compiler(), []

    def compile(self, grammar):
        self.threads.append(threading.current_thread())
        return self.compiler.compile(grammar)


def sequence(grammar, tenant="a", **sampling):
    return Sequence("s", [1], 1, SamplingParams(grammar=grammar, **sampling), tenant=tenant)


async def test_a_grammar_is_compiled_once_for_a_tenant_on_another_thread():
    counting = Counting()
    store = GrammarStore(counting)
    choices = [sequence(Grammar("regex", "a+")) for _ in range(8)]
    await asyncio.gather(*map(store.prepare, choices))
    assert len(counting.threads) == 1 and counting.threads[0] is not threading.current_thread()
    assert len({id(one.matcher) for one in choices}) == 8
    await store.prepare(sequence(Grammar("regex", "a+"), "b"))
    assert len(counting.threads) == 2


async def test_a_sequence_without_a_grammar_needs_no_compiler():
    free = sequence(None)
    await GrammarStore(None).prepare(free)
    assert free.matcher is None
    with pytest.raises(UnsupportedModel, match="no answer of this model"):
        await GrammarStore(None).prepare(sequence(Grammar("regex", "a")))


async def test_stop_strings_make_a_matcher_know_texts():
    with_stops = sequence(Grammar("regex", "a+"), stop=("b",))
    await GrammarStore(new_compiler()).prepare(with_stops)
    assert with_stops.matcher.accepts("aa")


async def test_refusals_have_reasons(monkeypatch):
    store = GrammarStore(new_compiler())
    with pytest.raises(InvalidRequest, match="unclosed"):
        await store.prepare(sequence(Grammar("regex", "(")))
    monkeypatch.setattr(module, "_MOST_WAITING", 0)
    with pytest.raises(Overloaded, match="wait already"):
        await store.prepare(sequence(Grammar("regex", "a")))
