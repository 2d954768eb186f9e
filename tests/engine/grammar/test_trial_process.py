"""What ends a process ends the one that tries grammars, and no other."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
import time
from contextlib import ExitStack

import pytest

from engine.errors import InvalidRequest, Unavailable
from engine.grammar import trial_process
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


def test_sound_grammars_pass_and_wrong_ones_say_where(trial, capfd):
    trial.try_grammar(Grammar("json_schema", '{"type": "object"}'))
    trial.try_grammar(choice_grammar(["a", "b"]))
    message = refusal(trial, Grammar("json_schema", '{"items": {"not": {}}}', "response_format"))
    assert message.startswith("response_format: #/items: ")
    for kind, text in (
        ("json_schema", '{"enum": ["\\ud800"]}'),
        ("lark", 'start: %json {"enum": ["\\ud800"]}'),
    ):
        assert "nested" not in refusal(trial, Grammar(kind, text))
    assert "Traceback" not in capfd.readouterr().err


def test_a_grammar_that_becomes_too_complex_with_its_first_tokens_is_refused(trial):
    many = Grammar("lark", f'start: {" ".join(["a"] * 3000)}\na: "x"?')
    assert "too complex" in refusal(trial, many)


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


def test_a_process_that_stands_still_holds_nobody_longer_than_the_deadline(trial, monkeypatch):
    large = Grammar("json_schema", json.dumps({"description": "a" * 120_000}))
    popen, started, raised = subprocess.Popen, [], []

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    trial.try_grammar(large)
    monkeypatch.setattr(trial_process, "ANSWER_S", 0.5)

    def ask():
        try:
            trial.try_grammar(large)
        except Unavailable as error:
            raised.append(error)

    [stopped] = started
    stopped.send_signal(signal.SIGSTOP)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    held = thread.is_alive()
    if held:
        stopped.kill()
    assert raised and not held
    monkeypatch.undo()
    trial.try_grammar(large)


def test_a_router_with_a_thousand_connections_tries_grammars(trial):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("too few descriptors")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        trial.try_grammar(Grammar("regex", "a"))


def test_a_model_that_follows_no_grammar_is_known_without_another_start():
    trial = TrialProcess(TOKENIZER.backend_tokenizer.to_str(), tiny.VOCABULARY, [])
    for _ in range(2):
        assert "end token" in refusal(trial, Grammar("regex", "a"))
