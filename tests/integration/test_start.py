"""A replica's start: its stages are those that the operator's table has, within a budget."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.local import cluster

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
# Before the replica's own code, so that only Ray's shell has it.
BEFORE = {"import"}


def described() -> set[str]:
    """The stages in the table of docs/operations.md."""
    _, _, section = OPERATIONS.read_text().partition("### A start, stage by stage")
    table = section.partition("| stage | what it is |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.M))


@pytest.mark.parametrize("budget_s", [1e-3, 1e3])
async def test_a_start_tells_its_stages_and_when_it_took_too_long(config, caplog, budget_s):
    caplog.set_level(logging.INFO, "cluster.replica")
    config = replace(config, scaling=replace(config.scaling, start_s=budget_s))
    async with cluster(config) as local:
        records = {record.id: record for record in await local.directory.members()}
    for replica in ("prefill-0", "decode-0"):
        took_s = records[replica].start_s
        assert took_s.keys() | BEFORE == described()
        assert all(seconds >= 0 for seconds in took_s.values())
    late = [r for r in caplog.records if r.getMessage() == "start beyond its budget"]
    assert len(late) == (2 if budget_s < 1 else 0)
    for told in map(vars, late):
        assert told["longest"] in described()
        assert told["seconds"] > told["budget_s"] == budget_s
