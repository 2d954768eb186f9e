"""Permissions, as a `kubectl` of the test answers."""

from __future__ import annotations

import pytest

from cluster.doctor.findings import Severity
from cluster.doctor.kubernetes import look_at_kubernetes


def kubectl(*, context="kind-test", server="v1", crd="rayservices.ray.io", refused=()):
    def run(command):
        match command[1:3]:
            case ["config", _]:
                return context
            case ["version", _]:
                return server
            case ["get", _]:
                return crd
            case _:
                return "no\n" if command[4] in refused else "yes\n"

    return run


@pytest.mark.parametrize(
    ("answers", "severities", "named"),
    [
        ({}, [Severity.OK], "kind-test"),
        ({"context": None}, [Severity.NOTE], "no kubectl"),
        ({"server": None}, [Severity.ERROR], "does not answer"),
        ({"crd": None}, [Severity.WARNING, Severity.OK], "no RayService"),
        ({"refused": ("secrets", "services")}, [Severity.ERROR], "services, secrets"),
    ],
)
def test_it_says_what_is_missing(answers, severities, named):
    found = list(look_at_kubernetes(kubectl(**answers)))
    assert [one.severity for one in found] == severities
    assert named in found[0].found
