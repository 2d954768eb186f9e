"""A router compiles each grammar of a tenant once, in another process, and knows it then."""

from __future__ import annotations

import asyncio

import pytest

from cluster.api import grammar_check as module
from cluster.api.grammar_check import GrammarCheck
from engine.errors import InvalidRequest, Overloaded
from engine.grammar import trial_process
from engine.text.tokenizer import Tokenizer
from engine.types.grammar import Grammar
from engine.types.sampling_params import SamplingParams
from tests import tiny

SOUND, WRONG = Grammar("regex", "a+"), Grammar("regex", "(", "guided_regex")


@pytest.fixture
async def check():
    checked = GrammarCheck(Tokenizer(tiny.make_tokenizer()), tiny.VOCABULARY, [tiny.EOS])
    yield checked
    await checked.close()


@pytest.fixture
def tried(monkeypatch):
    """The grammars that came to the process."""
    seen = []
    real = trial_process.TrialProcess.try_grammar

    def try_grammar(self, grammar):
        seen.append(grammar)
        return real(self, grammar)

    monkeypatch.setattr(trial_process.TrialProcess, "try_grammar", try_grammar)
    return seen


async def test_each_grammar_of_a_tenant_is_tried_once(check, tried):
    asked = SamplingParams(grammar=SOUND), SamplingParams(grammar=WRONG)
    for _ in range(3):
        await asyncio.gather(*(check.check(asked[0], "a") for _ in range(4)))
        with pytest.raises(InvalidRequest, match="guided_regex: character 1") as caught:
            await check.check(asked[1], "a")
        assert caught.value.field == "guided_regex"
    await check.check(asked[0], "b")
    assert tried == [SOUND, WRONG, SOUND]


async def test_an_error_in_a_larger_grammar_has_its_place_in_the_client_s_own(check):
    own = Grammar("json_schema", '{"properties": {"a": {"type": "nope"}}}', "guided_json")
    within = f'%llguidance {{}}\nstart: "so" %json {own.text}'
    larger = SamplingParams(grammar=Grammar("lark", within, "guided_json"))
    with pytest.raises(InvalidRequest, match="guided_json: #/properties/a: "):
        await check.first([larger], SamplingParams(grammar=own), "a")
    with pytest.raises(InvalidRequest, match="guided_json: line 2"):
        await check.first([larger], SamplingParams(), "a")
    sound = SamplingParams(grammar=SOUND)
    assert await check.first([larger, sound], sound, "a") is sound


async def test_a_request_without_a_grammar_starts_nothing(check, tried):
    await check.check(SamplingParams(), "a")
    assert not tried


async def test_only_special_tokens_stop_a_guided_answer(check):
    await check.check(SamplingParams(grammar=SOUND, stop_token_ids=(tiny.BOS,)), "a")
    with pytest.raises(InvalidRequest, match="special tokens, not 5"):
        await check.check(SamplingParams(grammar=SOUND, stop_token_ids=(5,)), "a")


async def test_a_tenant_s_grammars_wait_within_a_bound(check, monkeypatch):
    monkeypatch.setattr(module, "_MOST_OF_TENANT", 1)
    first = asyncio.create_task(check.check(SamplingParams(grammar=SOUND), "a"))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many grammars"):
        await check.check(SamplingParams(grammar=WRONG), "a")
    await first
