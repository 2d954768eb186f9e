"""The KV pool gets what is left beside everything else that will need memory."""

import pytest

from engine.errors import ConfigError
from engine.memory.budget import MemoryBudget

GIB = 2**30
BLOCK = 2 << 20


def test_what_is_reserved_is_taken_from_the_replicas_own_share():
    reserved = {"recorded steps": GIB, "links": 2 * GIB}
    assert MemoryBudget(60 * GIB, 0.9).for_blocks == 54 * GIB
    assert MemoryBudget(60 * GIB, 0.9, 1, reserved).for_blocks == 51 * GIB
    assert MemoryBudget(60 * GIB, 0.9, 2, reserved).for_blocks == 24 * GIB


def test_blocks_are_bounded_by_what_a_replica_can_use():
    budget = MemoryBudget(10 * GIB, 1.0)
    assert budget.blocks(BLOCK, 10**9) == 5120
    assert budget.blocks(BLOCK, 100) == 100


def test_no_room_is_told_in_one_line_with_the_numbers():
    budget = MemoryBudget(GIB, 0.5, 2, {"recorded steps": 512 << 20, "links": 0})
    with pytest.raises(ConfigError) as refusal:
        budget.blocks(BLOCK, 1000)
    assert refusal.value.message == (
        "kv: no block of 2.0 MiB fits: 1,024.0 MiB free beside the weights, 0.5 of it, "
        "shared by 2 replicas, less 512.0 MiB for recorded steps"
    )
