"""Fixtures: one cluster on five hosts for all tests here, and prompts with their answers."""

from __future__ import annotations

import pytest

from tests import exactness
from tests.e2e.hosts.namespaces import Switch, missing
from tests.e2e.hosts.ray_hosts import NAMES, RayHosts

# Prompts never come to be computed where they are decoded, so that all KV goes from host to host.
# However slow the machine is, nothing is refused for it, and its silence is no death.
APPLICATION = {
    "kv": {"blocks": 700, "silence_s": 5.0},
    "prefill": {"local_prefill_tokens": 0},
    "router": {"failover_timeout_s": 20.0},
    "endpoints": {
        "chat": {
            "max_output_tokens": 2000,
            "ttft_budget_ms": 600000.0,
            "itl_budget_ms": 60000.0,
        }
    },
}


@pytest.fixture(scope="session")
def can_have_hosts():
    """Skips, and says why, where no hosts can be made."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="package")
def cluster(can_have_hosts, model, model_folder, tmp_path_factory):
    """The application on its hosts; each test leaves it whole."""
    folder = tmp_path_factory.mktemp("hosts")
    application = APPLICATION | {"model": {"path": str(model_folder), "dtype": "float32"}}
    with Switch(NAMES, folder) as switch:
        cluster = RayHosts(switch, folder, application)
        cluster.start()
        cluster.deploy()
        yield cluster


@pytest.fixture(scope="package")
def cases(can_have_hosts, model):
    """Prompts of 1 to 1,500 tokens, and their greedy answers."""
    return exactness.make_cases(model, 48, seed=6)
