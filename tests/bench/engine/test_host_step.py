"""The host's figure: every stage of every step is timed, with steps in turn and ahead."""

from __future__ import annotations

import pytest

from bench.engine.host_step import STAGES, HostBench, as_series, pack_and_fill


@pytest.mark.parametrize("ahead", [False, True])
async def test_streams_run_to_their_end_and_each_stage_has_a_time(ahead):
    row = await HostBench("demo", 1e-4).run(2, 6, ahead=ahead)
    assert set(row.stages) == set(STAGES)
    assert all(taken > 0 for taken in row.stages.values())
    assert row.idle >= 0
    series = as_series([row], [pack_and_fill(2, 40, 3)], {"commit": "c", "date": "d"}, 0.1)
    assert f"2 streams, {'ahead' if ahead else 'in turn'}: idle" in series.figures
    assert "pack of 64 rows at 8,192 tokens" in series.figures


def test_packing_and_filling_take_time_while_rows_get_new_blocks():
    taken = pack_and_fill(3, 50, 20)
    assert set(taken) == {"pack", "fill"}
    assert all(value > 0 for value in taken.values())
