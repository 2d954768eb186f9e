"""Each fault has traffic of known tenants at known endpoints, and the cluster's settings hold."""

from __future__ import annotations

import pytest

from bench.faults.faulty_cluster import configuration
from bench.faults.scenes import CHAT, COMPLETIONS, SCENES, TENANTS
from cluster.config.schema import parse_config


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_whole(name, tmp_path):
    scene = SCENES[name]
    flows = [*scene.calm, *scene.extra]
    assert {flow.tenant for flow in flows} == set(TENANTS)
    assert {flow.endpoint for flow in flows} == {CHAT, COMPLETIONS}
    config = parse_config(configuration(scene, tmp_path))
    longest = max(1.2 * flow.prompt + flow.answer for flow in flows)
    assert longest < config.kv.block_size * (config.kv.blocks or 0)
    assert scene.cause and bool(scene.extra) != bool(scene.stopped)
