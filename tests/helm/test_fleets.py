"""Shares of the traffic for other releases, by the Gateway's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import helm_python
import pytest

from tests.helm.chart import Object, objects, one
from tests.helm.test_objects import SCHEMAS, faults


def routes(fleets: Sequence[dict[str, Any]]) -> dict[str, Object]:
    parents = [{"name": "public", "namespace": "gateways"}]
    api = {"enabled": True, "parentRefs": parents, "fleets": list(fleets)}
    found = objects({"gatewayApi": api})
    return {kind: one(found, kind) for kind in ("HTTPRoute", "GRPCRoute")}


def backends(route: Object) -> list[Object]:
    (rule,) = route["spec"]["rules"]
    refs: list[Object] = rule["backendRefs"]
    return refs


def test_without_fleets_all_of_it_is_the_release_s_own() -> None:
    found = routes([])
    assert backends(found["HTTPRoute"]) == [{"name": "tandem", "port": 8000}]
    assert backends(found["GRPCRoute"]) == [{"name": "tandem-grpc", "port": 50051}]


@pytest.mark.parametrize("weight", [0, 10, 100])
def test_a_fleet_gets_its_share_and_the_release_the_rest(weight: int) -> None:
    found = routes([{"release": "tandem-next", "weight": weight}])
    assert backends(found["HTTPRoute"]) == [
        {"name": "tandem", "port": 8000, "weight": 100 - weight},
        {"name": "tandem-next", "port": 8000, "weight": weight},
    ]
    assert backends(found["GRPCRoute"]) == [
        {"name": "tandem-grpc", "port": 50051, "weight": 100 - weight},
        {"name": "tandem-next-grpc", "port": 50051, "weight": weight},
    ]
    assert found["HTTPRoute"]["spec"]["rules"][0]["timeouts"]


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="no ../shared/schemas: custom resources unchecked")
def test_routes_with_shares_are_valid() -> None:
    fleets = [{"release": "next", "weight": 10}, {"release": "other", "weight": 5}]
    for route in routes(fleets).values():
        assert faults(route) == []
        assert sum(backend["weight"] for backend in backends(route)) == 100


@pytest.mark.parametrize(
    "fleets",
    [
        [{"release": "a", "weight": 60}, {"release": "b", "weight": 60}],
        [{"release": "a", "weight": 101}],
        [{"release": "", "weight": 1}],
        [{"release": "a"}],
        [{"release": "a", "weight": 1, "share": 2}],
    ],
)
def test_shares_that_make_no_sense_are_refused(fleets: list[dict[str, Any]]) -> None:
    with pytest.raises(helm_python.HelmError):
        routes(fleets)
