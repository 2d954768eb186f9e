"""Fixtures: one cluster on two hosts for all tests here, and streams with their answers."""

from __future__ import annotations

import pytest

from tests import exactness
from tests.e2e.hosts.conftest import APPLICATION, can_have_hosts
from tests.e2e.hosts.namespaces import Switch
from tests.e2e.two_hosts.cluster import NAMES, TwoHosts

__all__ = ["can_have_hosts"]


@pytest.fixture(scope="package")
def cluster(can_have_hosts, model, model_folder, tmp_path_factory):
    """The application with a replica of each pool on each host."""
    folder = tmp_path_factory.mktemp("two-hosts")
    application = APPLICATION | {"model": {"path": str(model_folder), "dtype": "float32"}}
    application["prefill"] = APPLICATION["prefill"] | {"replicas": 2}
    application["decode"] = {"replicas": 2}
    with Switch(NAMES, folder) as switch:
        cluster = TwoHosts(switch, folder, application)
        cluster.start()
        cluster.deploy()
        yield cluster


@pytest.fixture(scope="package")
def cases(model):
    """Streams that still run when a loss was noticed."""
    return [exactness.random_case(model, seed, 20, 1500) for seed in range(2)] * 2
