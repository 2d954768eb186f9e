"""A grammar in a request's sampling: its bounds, and what contradicts it."""

from __future__ import annotations

import pytest

from engine.errors import InvalidRequest
from engine.types.grammar import GRAMMAR_KINDS, Grammar, choice_grammar
from engine.types.sampling_params import SamplingParams
from protos.convert import grammar_from_proto, sampling_from_proto, sampling_to_proto
from tandem_client.protos.inference_pb2 import Choices
from tandem_client.protos.inference_pb2 import Grammar as Wire


@pytest.mark.parametrize(
    "grammar",
    [
        *(Grammar(kind, "a é", "x") for kind in GRAMMAR_KINDS if kind != "choice"),
        choice_grammar(["a", "é\n"], "x"),
    ],
    ids=lambda grammar: grammar.kind,
)
def test_every_kind_travels(grammar):
    sampling = SamplingParams(grammar=grammar)
    sampling.check(10)
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


@pytest.mark.parametrize(
    "wire", [Wire(), Wire(regex=""), Wire(choices=Choices()), Wire(regex="a" * 9000)]
)
def test_wrong_messages_are_refused(wire):
    with pytest.raises(InvalidRequest) as caught:
        grammar_from_proto(wire)
    assert caught.value.field == "grammar"


def test_a_text_that_the_wire_cannot_carry_is_refused():
    with pytest.raises(InvalidRequest) as caught:
        sampling_to_proto(SamplingParams(grammar=Grammar("regex", "\ud800", "guided_regex")))
    assert caught.value.field == "guided_regex"


def test_an_answer_that_ignores_its_end_follows_no_grammar():
    sampling = SamplingParams(grammar=Grammar("regex", "a"), ignore_eos=True)
    with pytest.raises(InvalidRequest, match="its grammar ends") as caught:
        sampling.check(10)
    assert caught.value.field == "ignore_eos"
