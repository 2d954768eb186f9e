"""The table of errors is complete, and what it says survives the way to the caller."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

import engine.kv.block_pool  # noqa: F401 - for its errors
import kv_transfer.errors
from cluster.admission.policy import Refuse
from cluster.admission.refusals import Refused
from cluster.api.error_mapping import TABLE, http_error, status_of
from cluster.gateway.grpc_retry_info import detailed_trailers
from protos.status import MAX_MESSAGE_BYTES, one_line
from tandem_client import errors
from tandem_client.errors import CLASS_TRAILER
from tandem_client.rpc_errors import error_from_rpc


def tree(root: type[errors.TandemError]) -> list[type[errors.TandemError]]:
    found = [root]
    for kind in found:
        found.extend(kind.__subclasses__())
    return found


ALL = tree(errors.TandemError)
OWN = [kind for kind in ALL if kind.__module__ == errors.__name__]


def sent(error: errors.TandemError) -> errors.TandemError:
    """What a caller makes of `error` after it has been aborted with."""
    failure = grpc.aio.AioRpcError(
        status_of(error).grpc,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*detailed_trailers(error, status_of(error).grpc)),
        details=one_line(error.message),
    )
    return error_from_rpc(failure)


@pytest.mark.parametrize("kind", OWN)
def test_each_class_of_the_tree_has_its_line(kind):
    assert kind in TABLE


@pytest.mark.parametrize("kind", ALL)
def test_each_class_is_mapped_below_the_root_with_its_own_code(kind):
    status = status_of(kind("message"))
    assert status.grpc.name == kind.code
    nearest = next(parent for parent in kind.__mro__ if parent in TABLE)
    assert kind is errors.TandemError or nearest is not errors.TandemError


@pytest.mark.parametrize("kind", OWN)
def test_each_class_comes_back_as_itself(kind):
    back = sent(kind("what happened"))
    assert type(back) is kind
    assert back.message == "what happened"


def test_a_class_of_a_deeper_module_comes_back_as_its_ancestor_or_itself():
    assert type(sent(kv_transfer.errors.ChannelBroken("gone"))) is errors.TransferFailed
    failure = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata((CLASS_TRAILER, "ChannelBroken")),
    )
    assert type(error_from_rpc(failure)) is kv_transfer.errors.ChannelBroken


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.retryable])
def test_retryable_errors_have_a_retry_time(kind):
    status, _, headers = http_error(kind("busy", retry_after_s=2.5))
    assert headers == {"retry-after": "3", "retry-after-ms": "2500"}
    assert status in (409, 429, 500, 503, 504)
    assert sent(kind("busy", retry_after_s=2.5)).retry_after_s == 2.5
    assert sent(kind("busy")).retry_after_s == 1.0


def test_a_refusal_over_http_says_when_it_was_decided():
    refused = Refused.by(Refuse("ttft", 2.5), 0.45678)
    assert http_error(refused)[2]["x-decided-ms"] == "456.8"


@pytest.mark.parametrize("kind", [kind for kind in ALL if not kind.retryable])
def test_other_errors_have_no_retry_time(kind):
    assert not {"retry-after", "retry-after-ms"} & set(http_error(kind("wrong"))[2])
    assert sent(kind("wrong")).retry_after_s is None


def test_the_field_travels():
    error = errors.InvalidRequest("top_p must be ...", field="top_p")
    assert sent(error).field == "top_p"
    assert http_error(error)[1]["error"]["param"] == "top_p"
    odd = errors.NotFound("no such model", field="é\n")
    assert sent(odd).field == "?"


def test_openai_form():
    status, body, _ = http_error(errors.NotFound("no model x", field="model"))
    assert status == 404
    assert body == {
        "error": {
            "message": "no model x",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_a_message_is_one_short_valid_line():
    assert one_line("a\n  b\r\n\tc\ud800") == "a b c\ufffd"
    long = one_line("é" * 100_000)
    assert len(long.encode()) <= MAX_MESSAGE_BYTES + 3


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", errors.Internal),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", errors.Overloaded),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (5 vs. 4)",
            errors.InvalidRequest,
        ),
        (grpc.StatusCode.UNKNOWN, None, errors.Internal),
    ],
)
def test_a_status_that_is_not_of_our_making(code, details, kind):
    failure = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    assert type(error_from_rpc(failure)) is kind
