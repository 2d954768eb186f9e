"""A short soak; `make soak-transfer` runs the long one."""

from __future__ import annotations

import pytest

from tests.chaos.soak import soak


@pytest.mark.parametrize("transport", ["loopback", "shared_memory", "gloo"])
async def test_random_faults_leave_nothing_behind(transport):
    counts = await soak(transport, 150, seed=1, limit_s=100.0)
    assert counts["exact"] > 0
    assert counts["links"] > 1
    assert counts["CORRUPT"] > 0
