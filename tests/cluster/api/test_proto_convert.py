"""Nouns survive the wire, and what it cannot carry is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.api import (
    ChatMessage,
    ChatPrompt,
    ChoiceSummary,
    GenerateRequest,
    ModelCard,
    Started,
    Summary,
    TextPrompt,
    TokenPrompt,
    Tokens,
)
from cluster.api.proto_convert import (
    event_to_proto,
    model_to_proto,
    request_from_proto,
    request_to_proto,
)
from engine.errors import Internal, InvalidRequest
from engine.types.grammar import GRAMMAR_KINDS, Grammar
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken
from protos.convert import (
    sampling_from_proto,
    sampling_to_proto,
    tokens_to_proto,
)
from tandem_client.events import ModelInfo
from tandem_client.messages import event_from_proto, model_from_proto, tokens_from_proto
from tandem_client.protos import inference_pb2

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
number = st.floats(allow_nan=False)
text = st.text()  # without surrogates, as encoded text is
name = st.text("abcXYZ019._:@/+=-", max_size=128)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.none() | uint32,
    temperature=number,
    top_k=st.integers(-1, 2**31 - 1),
    top_p=number,
    min_p=number,
    repetition_penalty=number,
    presence_penalty=number,
    frequency_penalty=number,
    logit_bias=st.dictionaries(uint32, number, max_size=5),
    seed=st.none() | uint64,
    stop=st.lists(text, max_size=4).map(tuple),
    stop_token_ids=st.lists(uint32, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | uint32,
    grammar=st.none()
    | st.builds(Grammar, st.sampled_from(GRAMMAR_KINDS[:3]), st.text(min_size=1, max_size=20)),
)
prompts = st.one_of(
    st.builds(TextPrompt, st.text(min_size=1)),
    st.builds(TokenPrompt, st.lists(uint32, min_size=1, max_size=20).map(tuple)),
    st.builds(
        ChatPrompt,
        st.lists(
            st.builds(ChatMessage, st.sampled_from(["system", "user", "assistant"]), text),
            min_size=1,
            max_size=4,
        ).map(tuple),
    ),
)
requests = st.builds(
    GenerateRequest,
    prompt=prompts,
    sampling=samplings,
    n=st.integers(1, 128),
    request_id=name,
    model=text,
    endpoint=text,
    tenant=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    progress=st.booleans(),
)
sampled = st.builds(
    SampledToken,
    uint32,
    st.none() | number,
    st.lists(st.tuples(uint32, number), max_size=3).map(tuple),
)
finish = st.sampled_from([None, "stop", "length"])
runs = st.one_of(
    st.builds(Tokens, uint32, uint32, st.lists(uint32, max_size=5).map(tuple), text, finish),
    st.builds(
        lambda tokens, *rest: Tokens(*rest[:2], tuple(t.token for t in tokens), *rest[2:], tokens),
        st.lists(sampled, max_size=5).map(tuple),
        uint32,
        uint32,
        text,
        finish,
    ),
)
choice_summaries = st.builds(
    ChoiceSummary, uint32, *[number] * 7, preemptions=uint32, prefill_replica=text,
    decode_replica=text, cached_tokens=uint32,
)  # fmt: skip
events = st.one_of(
    runs,
    st.builds(Started, name, text, uint32, uint64),
    st.builds(Summary, uint32, uint32, st.lists(choice_summaries, max_size=3).map(tuple), number),
)


@given(requests)
def test_requests_survive(request):
    wire = inference_pb2.GenerateRequest.FromString(request_to_proto(request).SerializeToString())
    assert request_from_proto(wire) == request


@given(events)
def test_events_survive(event):
    wire = inference_pb2.GenerateEvent.FromString(event_to_proto(event).SerializeToString())
    assert event_from_proto(wire) == event


@given(samplings)
def test_sampling_survives(sampling):
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


def test_absent_fields_take_their_default():
    assert sampling_from_proto(inference_pb2.Sampling()) == SamplingParams()
    given = sampling_from_proto(inference_pb2.Sampling(temperature=0.0, logprobs=0))
    assert given.greedy
    assert given.logprobs == 0


@given(st.text(st.characters()))
def test_any_text_of_tokens_becomes_valid(odd):
    wire = tokens_to_proto(0, 0, [1], odd, None)
    assert tokens_from_proto(wire).text == odd.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "replace"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 2**40),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_k", 2**40),
        ("top_k", 1.5),
        ("seed", 2**64),
        ("seed", -1),
        ("stop", ("\ud800",)),
        ("stop", 5),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (2**32,)),
        ("stop_token_ids", ("a",)),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: "x"}),
        ("logit_bias", 3),
        ("ignore_eos", "maybe"),
        ("logprobs", 2**33),
    ],
)
def test_sampling_that_the_wire_cannot_carry_is_refused(field, value):
    with pytest.raises(InvalidRequest) as caught:
        sampling_to_proto(SamplingParams(**{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", -1), ("n", "two"), ("request_id", 5), ("model", "\ud800"), ("endpoint", 0.5)],
)
def test_a_request_that_the_wire_cannot_carry_is_refused(field, value):
    with pytest.raises(InvalidRequest) as caught:
        request_to_proto(GenerateRequest(TextPrompt("a"), **{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", [TextPrompt("\ud800"), TokenPrompt((2**32,)), TextPrompt(3)])
def test_a_prompt_that_the_wire_cannot_carry_is_refused(prompt):
    with pytest.raises(InvalidRequest) as caught:
        request_to_proto(GenerateRequest(prompt))
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ({}, "input"),
        ({"text": ""}, "text"),
        ({"token_ids": {}}, "token_ids"),
        ({"chat": {}}, "chat.messages"),
        ({"chat": {"messages": [{"role": "tool"}]}}, "chat.messages[0].tool_call_id"),
        ({"text": "a", "n": 129}, "n"),
        ({"text": "a", "request_id": "two words"}, "request_id"),
        ({"text": "a", "request_id": "a" * 129}, "request_id"),
        ({"text": "a", "request_id": "a\n"}, "request_id"),
    ],
)
def test_a_message_that_is_no_request(wire, field):
    with pytest.raises(InvalidRequest) as caught:
        request_from_proto(inference_pb2.GenerateRequest(**wire))
    assert caught.value.field == field


def test_n_of_0_is_1():
    assert request_from_proto(inference_pb2.GenerateRequest(text="a")).n == 1


@pytest.mark.parametrize(
    "wire",
    [
        inference_pb2.GenerateEvent(),
        inference_pb2.GenerateEvent(tokens=inference_pb2.Tokens(finish_reason=9)),
        inference_pb2.GenerateEvent(
            tokens=inference_pb2.Tokens(ids=[1, 2], logprobs=[inference_pb2.TokenLogprobs()])
        ),
    ],
)
def test_an_event_that_contradicts_itself(wire):
    with pytest.raises(Internal):
        event_from_proto(wire)


def test_a_client_gets_the_model_card_without_its_date_and_lanes():
    known = ("demo", "Llama", "float32", 4096, 256, ("chat", "report"))
    assert model_from_proto(model_to_proto(ModelCard(*known, created=7))) == ModelInfo(*known)
