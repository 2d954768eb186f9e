"""What ends a process ends the one that tries grammars, and no other."""

from __future__ import annotations

import json
import time

import pytest

from engine.errors import InvalidRequest, Unavailable
from engine.grammar.trial_process import TrialProcess
from engine.types.grammar import Grammar, choice_grammar
from tests import tiny
from tests.engine.grammar.walks import TOKENIZER

CHAIN = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(3000)}
# Chains of references overflow the stack, and large divisors take minutes.
OVERFLOWS = json.dumps({"$ref": "#/$defs/a0", "$defs": CHAIN | {"a3000": {"type": "null"}}})
SLOW = json.dumps({"properties": {"a": {"type": "integer", "multipleOf": 1_000_003}}})


@pytest.fixture
def trial():
    process = TrialProcess(TOKENIZER.backend_tokenizer.to_str(), tiny.VOCABULARY, [tiny.EOS])
    yield process
    process.close()


def refusal(trial, grammar):
    with pytest.raises(InvalidRequest) as caught:
        trial.try_grammar(grammar)
    assert caught.value.field == grammar.field
    return caught.value.message


def test_sound_grammars_pass_and_wrong_ones_say_where(trial):
    trial.try_grammar(Grammar("json_schema", '{"type": "object"}'))
    trial.try_grammar(choice_grammar(["a", "b"]))
    message = refusal(trial, Grammar("json_schema", '{"items": {"not": {}}}', "response_format"))
    assert message.startswith("response_format: #/items: ")


def test_a_grammar_that_overflows_the_stack_ends_its_trial_alone(trial):
    assert "nested too deep" in refusal(trial, Grammar("json_schema", OVERFLOWS))
    trial.try_grammar(Grammar("regex", "a"))


def test_a_grammar_that_takes_too_long_is_refused_in_time(trial):
    began_s = time.monotonic()
    assert "more than 2 s" in refusal(trial, Grammar("json_schema", SLOW))
    assert time.monotonic() - began_s < 20
    trial.try_grammar(Grammar("regex", "a"))


def test_a_process_that_others_end_says_nothing_of_a_grammar(trial, monkeypatch):
    sound = Grammar("regex", "a")
    trial.try_grammar(sound)
    running = TrialProcess._running

    def killed(self, grammar):
        process = running(self, grammar)
        process.kill()
        return process

    monkeypatch.setattr(TrialProcess, "_running", killed)
    with pytest.raises(Unavailable) as caught:
        trial.try_grammar(sound)
    assert caught.value.retryable
    monkeypatch.undo()
    trial.try_grammar(sound)


def test_a_model_that_follows_no_grammar_is_known_without_another_start():
    trial = TrialProcess(TOKENIZER.backend_tokenizer.to_str(), tiny.VOCABULARY, [])
    for _ in range(2):
        assert "end token" in refusal(trial, Grammar("regex", "a"))
