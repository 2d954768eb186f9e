"""Each fault has traffic of known tenants at known endpoints, and the cluster's settings hold."""

from __future__ import annotations

import pytest

from bench.faults.cluster_faults import CHAT, COMPLETIONS, FAULTS, TENANTS
from bench.faults.faulty_cluster import configuration
from cluster.config.schema import parse_config


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_whole(name, tmp_path):
    fault = FAULTS[name]
    flows = [*fault.calm, *fault.extra]
    assert {flow.tenant for flow in flows} == set(TENANTS)
    assert {flow.endpoint for flow in flows} == {CHAT, COMPLETIONS}
    config = parse_config(configuration(fault, tmp_path))
    longest = max(1.2 * flow.prompt + flow.answer for flow in flows)
    assert longest < config.kv.block_size * (config.kv.blocks or 0)
    assert fault.cause and bool(fault.extra) != bool(fault.stopped)
