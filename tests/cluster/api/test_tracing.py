"""The ids that a client's tracing gives a request."""

import pytest

from cluster.api.tracing import Trace
from cluster.api.validation import check_request_id

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_trace_is_read_and_names_requests():
    trace = Trace.of({"x-request-id": "a:b/1", "traceparent": PARENT}.get)
    assert trace.fields() == {"x_request_id": "a:b/1", "traceparent": PARENT}
    assert trace.new_id().startswith("a:b/1-") and trace.new_id() != trace.new_id()
    check_request_id(Trace("x" * 112).new_id() + "-127")


@pytest.mark.parametrize("wrong", ["", "a b", "a\n", "ф", "x" * 113])
def test_what_is_no_id_is_ignored(wrong):
    trace = Trace.of({"x-request-id": wrong, "traceparent": wrong}.get)
    assert trace == Trace() and trace.fields() == {}
    check_request_id(trace.new_id())


def test_a_later_version_is_read_as_far_as_it_is_known():
    later = "cc" + PARENT[2:]
    for more in ("", "-", "-what=the-future" * 4000):
        assert Trace.of({"traceparent": later + more}.get).parent == later


@pytest.mark.parametrize(
    "wrong",
    [
        "ff" + PARENT[2:],
        PARENT + "-more",
        PARENT.upper(),
        "cc" + PARENT[2:] + "more",
        PARENT + "\n",
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        f"{PARENT}, {PARENT}",
        PARENT * 1200,
    ],
)
def test_a_parent_that_is_none_is_ignored(wrong):
    assert Trace.of({"traceparent": wrong}.get) == Trace()
