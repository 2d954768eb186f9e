"""A link that one side closes has not broken, on either side."""

from __future__ import annotations

import logging

import pytest

from tests.kv_transfer.rig import eventually, linked


@pytest.mark.parametrize("closes", ["sender", "receiver"])
async def test_neither_side_warns_of_a_link_that_one_of_them_closed(closes, caplog):
    caplog.set_level(logging.INFO, logger="kv_transfer")
    async with linked() as pair:
        await pair.move("t", [1, 2], [3, 4])
        await getattr(pair, closes).close()
        await eventually(lambda: pair.sender.links_open == pair.receiver.links_open == 0)
        assert pair.sender.counters.links_failed == pair.receiver.counters.links_failed == 0
    told = [one.getMessage() for one in caplog.records if ": closed: " in one.getMessage()]
    assert len(told) == 2, told
    assert f"the {closes} is closing" in " ".join(told)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
