"""The judge of the chaos finds each kind of loss."""

from __future__ import annotations

import pytest

from engine.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    ReplicaLost,
    Unavailable,
)
from tests import tiny
from tests.chaos.faults import Fault
from tests.chaos.load import Answer, Request, Stream

PROMPT = tuple(range(40))
OPTIONS = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("tiny"))


def answer(*ids, **fields):
    return Answer({0: [*ids]}, {0: "text"}, finish={0: "length"}, **fields)


WANT = answer(1, 2, 3, 4, started=True, ended=True)


def fate(model, got, error=None, *, kind="greedy", resumable=False, router_lost=False):
    request = Request("greedy-0", kind, PROMPT, OPTIONS)
    stream = Stream("s", request, resumable, answer=got, error=error)
    stream.judge(WANT, model, Fault("kill", "router" if router_lost else "decode"))
    return stream.fate


def test_what_is_whole_is_exact(model):
    assert fate(model, answer(1, 2, 3, 4, started=True, ended=True)) == "exact"


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (answer(1, 2, 9, 4, started=True, ended=True), "wrong"),
        (answer(1, 2, 3, 4, 5, started=True, ended=True), "wrong"),
        (answer(1, 2, 3, started=True, ended=True), "lost"),
        (answer(1, 2, 3, 4, started=True), "lost"),
        (answer(1, 2, 3, 4, started=True, ended=True, repeated=1), "repeated"),
    ],
)
def test_another_answer_is_found(model, got, expected):
    assert fate(model, got) == expected


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [
        (TimeoutError(), {}, "endless"),
        (ReplicaLost("gone"), {}, "lost"),
        (Unavailable("gone"), {"router_lost": True}, "broken"),
        (Unavailable("gone"), {"router_lost": True, "resumable": True}, "lost"),
        (Cancelled("by its client"), {"kind": "cancel"}, "cancelled"),
        (Cancelled("by nobody"), {}, "lost"),
    ],
)
def test_an_error_is_a_loss_but_for_a_router_that_was_taken_away(model, error, options, expected):
    assert fate(model, answer(1, 2, started=True), error, **options) == expected


@pytest.mark.parametrize(
    "behind",
    [
        InvalidRequest("have[0] is 3, which is more than the journal has", field="have"),
        NotFound("there is no such stream, or it ended too long ago"),
    ],
    ids=["too little", "nothing"],
)
def test_a_stream_that_its_client_knew_to_be_suspended_is_counted_apart(model, behind):
    got = answer(1, 2, started=True)
    assert fate(model, got, behind, router_lost=True, resumable=True) == "lost"
    got.suspended = True
    assert fate(model, got, behind, router_lost=True, resumable=True) == "unjournaled"


def test_the_end_of_the_whole_cluster_breaks_resumable_streams_too(model):
    stream = Stream("s", Request("greedy-0", "greedy", PROMPT, OPTIONS), resumable=True)
    stream.answer, stream.error = answer(1, 2, started=True), Unavailable("gone")
    stream.judge(WANT, model, Fault("kill", "raylet", ends_cluster=True))
    assert stream.fate == "broken"
    stream.answer.ids[0][1] = 9
    stream.judge(WANT, model, Fault("kill", "raylet", ends_cluster=True))
    assert stream.fate == "wrong"


@pytest.mark.parametrize("ids", [(1, 2), (1, 2, 3, 4)])
def test_a_request_whose_client_left_it_with_a_cancel_needs_no_end(model, ids):
    assert fate(model, answer(*ids, started=True, left=True), kind="cancel") == "cancelled"
    assert fate(model, answer(1, 2, 3, 4, started=True), kind="cancel") == "lost"


def test_an_error_before_the_start_is_a_refusal(model):
    assert fate(model, Answer(), Overloaded("full")) == "refused"
    assert fate(model, Answer(), ValueError("strange")) == "lost"


def test_log_probabilities_are_compared(model):
    want = Answer(scores=[-1.0, -2.0], ended=True)
    stream = Stream("s", Request("score-0", "score", PROMPT, {}), resumable=False)
    stream.answer = Answer(scores=[-1.0, -2.1], ended=True)
    stream.judge(want, model, Fault("kill", "decode"))
    assert stream.fate == "wrong"
