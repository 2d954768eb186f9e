"""The labels of requests are few, whatever clients send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.api import GenerateRequest, TextPrompt
from cluster.config.endpoints import EndpointConfig
from cluster.telemetry.labels import Labels, RequestLabels

ENDPOINTS = {"chat": EndpointConfig(), "report": EndpointConfig(lane="batch")}


def labels(most: int = 3, tenants: tuple[str, ...] = ()) -> RequestLabels:
    return RequestLabels(ENDPOINTS, "chat", tenants, most)


def found(made: RequestLabels, endpoint: str = "", tenant: str = "default") -> Labels:
    return made.of(GenerateRequest(TextPrompt("hi"), endpoint=endpoint), tenant)


def test_a_request_has_its_endpoint_lane_and_tenant() -> None:
    chat = {"endpoint": "chat", "lane": "interactive", "tenant": "default"}
    report = {"endpoint": "report", "lane": "batch", "tenant": "acme"}
    assert found(labels()) == chat
    assert found(labels(), "report", "acme") == report


def test_an_unconfigured_endpoint_is_other() -> None:
    other = found(labels(), "nonsense")
    assert (other["endpoint"], other["lane"]) == ("other", "other")


def test_tenants_beyond_the_bound_are_other_and_those_before_stay() -> None:
    made = labels(most=3)
    seen = [found(made, tenant=name)["tenant"] for name in ("a", "b", "c", "a", "default", "d")]
    assert seen == ["a", "b", "other", "a", "default", "other"]


def test_configured_tenants_come_first() -> None:
    made = labels(most=2, tenants=("acme", "late"))
    names = ("x", "late", "acme", "default")
    assert [found(made, tenant=name)["tenant"] for name in names] == [
        "other",
        "other",
        "acme",
        "default",
    ]


def test_without_metric_tenants_all_tenants_are_other() -> None:
    assert found(labels(most=0))["tenant"] == "other"


@given(
    st.integers(0, 5),
    st.lists(st.text(max_size=70), max_size=5),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=70)), max_size=40),
)
def test_clients_make_no_more_labels_than_allowed(
    most: int, configured: list[str], requests: list[tuple[str, str]]
) -> None:
    made = labels(most, tuple(configured))
    given_out = [found(made, endpoint, tenant) for endpoint, tenant in requests]
    assert len({one["tenant"] for one in given_out} - {"other"}) <= most
    assert {one["endpoint"] for one in given_out} <= {*ENDPOINTS, "other"}
