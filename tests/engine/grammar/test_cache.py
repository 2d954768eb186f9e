"""The cache of grammars is bounded, of each tenant and of all."""

from __future__ import annotations

from engine.grammar.cache import GrammarCache
from engine.types.grammar import MAX_GRAMMAR_BYTES, Grammar


def grammar(name, size=1):
    return Grammar("regex", str(name).ljust(size))


def test_the_least_lately_used_is_forgotten():
    cache = GrammarCache()
    for number in range(64):
        cache.put("a", grammar(number), number)
    assert cache.get("a", grammar(0)) == 0
    cache.put("a", grammar(64), 64)
    assert cache.get("a", grammar(0)) == 0 and cache.get("a", grammar(1)) is None


def test_a_tenant_s_grammars_are_its_own_and_displace_only_its_own():
    cache = GrammarCache()
    cache.put("b", grammar("same"), "b's")
    for number in range(1000):
        cache.put("a", grammar(number), number)
    assert cache.get("a", grammar("same")) is None
    assert cache.get("b", grammar("same")) == "b's"


def test_texts_are_bounded():
    cache = GrammarCache()
    for number in range(3):
        cache.put("a", grammar(number, MAX_GRAMMAR_BYTES), number)
    assert [cache.get("a", grammar(n, MAX_GRAMMAR_BYTES)) for n in range(3)] == [None, 1, 2]
    for number in range(9):
        cache.put(f"t{number}", grammar(number, MAX_GRAMMAR_BYTES), number)
    assert cache.get("a", grammar(1, MAX_GRAMMAR_BYTES)) is None
