"""Free memory, as the system and the control group tell it."""

from __future__ import annotations

import pytest
import torch

from engine.errors import ConfigError
from engine.free_memory import free_bytes

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def system(tmp_path):
    """A folder with what the system tells, without a control group."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return tmp_path


def free(system):
    return free_bytes(CPU, meminfo=system / "meminfo", control_group=system)


def limit(system, most, used, cached):
    (system / "memory.max").write_text(f"{most}\n")
    (system / "memory.current").write_text(f"{used}\n")
    (system / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")


def test_without_a_group_the_system_tells(system):
    assert free(system) == 8 * GIB


def test_a_group_without_a_limit_changes_nothing(system):
    limit(system, "max", 5 * GIB, 0)
    assert free(system) == 8 * GIB


def test_a_containers_limit_counts_and_cached_files_are_free(system):
    limit(system, 4 * GIB, 3 * GIB, GIB)
    assert free(system) == 2 * GIB
    limit(system, 4 * GIB, 5 * GIB, 0)
    assert free(system) == 0


def test_a_limit_above_what_there_is_does_not_count(system):
    limit(system, 64 * GIB, GIB, 0)
    assert free(system) == 8 * GIB


def test_a_system_that_does_not_tell_is_named(system):
    (system / "meminfo").write_text("MemTotal: 99 kB\n")
    with pytest.raises(ConfigError, match=r"kv\.blocks"):
        free(system)


def test_this_machine_has_some(tmp_path):
    assert free_bytes(CPU, control_group=tmp_path) > 0
