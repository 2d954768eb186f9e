"""Processors and limits, of machines that are files of a test."""

from __future__ import annotations

import resource

import pytest

from cluster.doctor.findings import Severity
from cluster.doctor.machine import (
    Machine,
    clock_state,
    look_at_clock,
    look_at_files,
    look_at_locked_memory,
    look_at_processors,
    look_at_scheduling,
    look_at_shared_memory,
)

NONE = resource.RLIM_INFINITY


def machine(folder, flags="", autogroup="0"):
    (folder / "sys/kernel").mkdir(parents=True)
    (folder / "sys/kernel/sched_autogroup_enabled").write_text(autogroup)
    (folder / "cpuinfo").write_text(f"model name\t: Some Processor\nflags\t\t: fpu {flags}\n")
    return Machine(folder)


def only(findings):
    (found,) = findings
    return found


@pytest.mark.parametrize(
    ("flags", "severity", "named"),
    [
        ("avx2 avx512f", Severity.OK, "avx512f"),
        ("avx2 amx_bf16", Severity.OK, "amx_bf16"),
        ("sse4_2", Severity.WARNING, "without AVX2"),
    ],
)
def test_a_processor_is_judged_by_its_vectors(tmp_path, flags, severity, named):
    found = only(look_at_processors(machine(tmp_path, flags), 4))
    assert found.severity is severity
    assert "Some Processor, 4 cores" in found.found and named in found.found


def test_one_core_is_too_few(tmp_path):
    *_, last = look_at_processors(machine(tmp_path, "avx2"), 1)
    assert (last.severity, last.found) == (Severity.WARNING, "1 core")


def test_autogroups_are_told(tmp_path):
    assert not list(look_at_scheduling(machine(tmp_path)))
    found = only(look_at_scheduling(machine(tmp_path / "on", autogroup="1\n")))
    assert found.severity is Severity.NOTE and "sched_autogroup" in found.found


@pytest.mark.parametrize(
    ("hard", "severity"),
    [(1024, Severity.WARNING), (65536, Severity.OK), (NONE, Severity.OK)],
)
def test_few_files_are_a_warning(hard, severity):
    assert only(look_at_files((1024, hard))).severity is severity


def test_locked_memory_matters_with_gpus_alone():
    assert not list(look_at_locked_memory(0, (65536, 65536)))
    assert only(look_at_locked_memory(1, (65536, 65536))).severity is Severity.WARNING
    assert only(look_at_locked_memory(1, (NONE, NONE))).severity is Severity.OK


def test_shared_memory_must_be_there(tmp_path):
    assert only(look_at_shared_memory(tmp_path / "none")).severity is Severity.WARNING
    assert only(look_at_shared_memory(tmp_path)).subject == "shared memory"


@pytest.mark.parametrize(
    ("state", "severity", "said"),
    [(0, Severity.OK, "NTP"), (5, Severity.NOTE, "nothing"), (-1, Severity.NOTE, "says nothing")],
)
def test_a_clock_that_nothing_keeps_is_told(state, severity, said):
    found = only(look_at_clock(lambda: state))
    assert found.severity is severity and said in found.found


def test_the_kernel_is_asked_for_its_clock():
    assert clock_state() in range(-1, 6)
