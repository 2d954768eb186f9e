"""From bytes to outcomes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.prompts import count_tokens
from bench.load.arrivals import Arrival
from bench.load.http_recording import RecordedAnswer
from bench.load.open_loop import Try
from bench.load.request_outcome import Outcome, one_each, read

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_ARRIVAL = Arrival(2.0, "burst", 100, 4)


def _chunk(document):
    data = f"data: {json.dumps(document)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _text(text, finish=None, **more):
    return _chunk({"choices": [{"text": text, "finish_reason": finish, **more}]})


def _usage(tokens):
    return _chunk({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": tokens}})


def _read(reads, count=one_each, arrival=_ARRIVAL):
    answer = RecordedAnswer(12.5, reads)
    return read(Try(7, 0, 12.0, 20.0, answer, None), arrival, 10.0, count)


def test_a_stream_is_counted_from_when_it_was_due():
    reads = [(13.0, _HEAD + _text("w3"))]
    reads += [(13.5, _text(" w4")), (14.0, _text(" w5")), (16.0, _text(" w6", "length"))]
    found = _read([*reads, (16.0, b"0\r\n\r\n")])
    assert (found.index, found.phase, found.due_s, found.asked_s) == (7, "burst", 2.0, 2.5)
    assert found.complete
    assert (found.ttft_s, found.ttfmt_s, found.ttlt_s) == (1.0, 1.0, 4.0)
    assert found.mean_itl_s == 1.0
    assert found.stall_s == 2.0
    assert found.itls_s() == [0.5, 0.5, 2.0]


def test_coalesced_pieces_count_tokens_where_their_text_tells():
    reads = [(13.0, _HEAD + _text("w3")), (14.0, _text(" w4 w5 w6", "length") + _usage(4))]
    found = _read([*reads, (14.0, b"0\r\n\r\n")], count_tokens)
    assert found.messages == ((3.0, 1), (4.0, 3))
    assert found.itls_s() == pytest.approx([1 / 3] * 3)
    assert found.stall_s == 1.0


def test_or_the_servers_count_with_equal_itl():
    reads = [(13.0, _HEAD + _text("One")), (14.0, _text(" of many.", "length") + _usage(4))]
    found = _read([*reads, (14.0, b"0\r\n\r\n")])
    assert found.tokens == 4
    assert found.itls_s() == pytest.approx([1 / 3] * 3)


def test_or_the_ids_that_came():
    reads = [(13.0, _HEAD + _text("a", token_ids=[5])), (14.0, _text("b", token_ids=[6, 7, 8]))]
    found = _read([*reads, (14.0, b"0\r\n\r\n")])
    assert found.tokens == 4
    assert found.messages == ((3.0, 1), (4.0, 3))


def test_a_chats_role_is_no_token():
    role = _chunk({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    pieces = [_chunk({"choices": [{"delta": {"content": text}}]}) for text in ("w3", " w4 w5")]
    reads = [(12.8, _HEAD + role), (13.0, pieces[0]), (14.0, pieces[1] + _usage(3))]
    found = _read([*reads, (14.0, b"0\r\n\r\n")], count_tokens)
    assert found.messages == ((3.0, 1), (4.0, 2))
    assert found.ttfmt_s == 1.0


def test_events_of_one_read_are_one_message():
    reads = [(13.0, _HEAD + _text("w3")), (14.0, _text(" w4") + _text(" w5"))]
    reads += [(15.0, _text(" w6", "length") + b"0\r\n\r\n")]
    assert _read(reads).messages == ((3.0, 1), (4.0, 2), (5.0, 1))


def test_a_first_token_without_text_is_one_but_means_nothing():
    reads = [(13.0, _HEAD + _text("")), (14.0, _text("…")), (15.0, _text("yes"))]
    found = _read([*reads, (16.0, b"0\r\n\r\n")])
    assert found.ttft_s == 1.0
    assert found.ttfmt_s == 3.0


def test_a_refusal_is_none_of_the_failures():
    head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\nRetry-After-Ms: 2345\r\n"
    found = _read([(12.6, head + b"x-decided-ms: 80.5\r\ncontent-length: 2\r\n\r\n{}")])
    assert found.refused
    assert not found.complete
    assert found.retry_after_s == pytest.approx(2.345)
    assert found.decided_s == pytest.approx(0.0805)
    assert found.told_s == pytest.approx(found.ended_s - found.asked_s - 0.0805)
    assert found.error is None


@pytest.mark.parametrize(
    ("reads", "status"),
    [
        ([], None),
        ([(13.0, b"HTTP/1.1 500 Oh\r\n\r\nfault")], 500),
        ([(13.0, _HEAD + _text("w3"))], 200),
        ([(13.0, _HEAD + _chunk({"error": {"message": "lost"}}) + b"0\r\n\r\n")], 200),
        ([(13.0, _HEAD + b"c\r\ndata: {oops\n\r\n0\r\n\r\n")], 200),
    ],
)
def test_every_fault_of_an_answer_is_an_error(reads, status):
    found = _read(reads)
    assert found.error
    assert found.status == status
    assert not found.complete


def test_a_short_answer_is_whole_only_if_the_model_ended_it():
    def answered(finish):
        return _read([(13.0, _HEAD + _text("w3") + _text(" w4", finish) + b"0\r\n\r\n")])

    assert answered("stop").complete
    assert not answered("length").complete


def test_a_missing_answer_is_an_error():
    found = read(Try(0, 0, 12.0, 13.0, None, "no end"), _ARRIVAL, 10.0)
    assert (found.error, found.ttft_s, found.mean_itl_s, found.stall_s) == ("no end",) + (None,) * 3


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.001, 5), st.integers(1, 9)), min_size=1, max_size=20),
    st.integers(0, 3),
)
def test_itl_add_up_to_the_stream(pieces, uncounted):
    moment, messages = 1.0, []
    for wait, tokens in pieces:
        moment += wait
        messages.append((moment, tokens))
    total = sum(tokens for _, tokens in messages) + uncounted
    found = Outcome(0, 0, "calm", 0, 0, 99, 9, total, 200, total, tuple(messages))
    itls = found.itls_s()
    assert len(itls) == total - 1 if total > 1 else not itls
    if total > 1:
        assert sum(itls) == pytest.approx(messages[-1][0] - messages[0][0], abs=1e-9)
        assert sum(itls) == pytest.approx(found.mean_itl_s * (total - 1), abs=1e-9)
        assert (found.stall_s or 0) <= sum(itls) + 1e-9
