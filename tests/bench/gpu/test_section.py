"""A section of the benchmark of a GPU: its rows are kept whatever happens to it."""

from __future__ import annotations

import torch

from bench.gpu.section import Section, run_section

CPU = torch.device("cpu")


class Kept:
    def __init__(self):
        self.rows = []

    def row(self, section, /, **values):
        self.rows.append((section, values))


def rows_then(fault):
    def run(device, dry):
        yield {"first": 1}
        if fault is not None:
            raise fault
        yield {"second": 2}

    return run


def test_a_fault_is_written_down_behind_the_rows_before_it():
    kept = Kept()
    assert not run_section(Section("a", rows_then(OSError("no")), 9.0), CPU, dry=True, into=kept)
    assert kept.rows == [
        ("a", {"first": 1}),
        ("faults", {"section": "a", "error": "OSError: no"}),
    ]


def test_nothing_is_begun_behind_the_budget():
    kept = Kept()
    assert not run_section(Section("a", rows_then(None), -1.0), CPU, dry=True, into=kept)
    assert [name for name, _ in kept.rows] == ["a", "faults"]


def test_a_section_may_return_its_rows_or_none_at_all():
    kept = Kept()
    assert run_section(Section("a", rows_then(None), 9.0), CPU, dry=True, into=kept)
    assert run_section(Section("b", lambda device, dry: None, 9.0), CPU, dry=True, into=kept)
    assert run_section(Section("c", lambda device, dry: [{"x": 1}], 9.0), CPU, dry=True, into=kept)
    assert [name for name, _ in kept.rows] == ["a", "a", "c"]
