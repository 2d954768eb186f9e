"""A replica's start: its stages are those that the operator's table has, within a budget."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model import forward_selection as choose
from engine.model.forward_selection import RecordedSteps
from tests.integration.local import cluster
from tests.integration.test_prefixes import PROMPT, ask, expected

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "scale-to-zero.md"
# Before the replica's own code, so that only Ray's shell has it.
BEFORE = {"import"}
ON_A_GPU = {"improvement"}


def described() -> set[str]:
    """The stages in the table of docs/howto/scale-to-zero.md."""
    _, _, section = PAGE.read_text().partition("## The stages of a start")
    table = section.partition("| stage | what it is |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.M))


@pytest.mark.parametrize("budget_s", [1e-3, 1e3])
async def test_a_start_tells_its_stages_and_when_it_took_too_long(config, caplog, budget_s):
    caplog.set_level(logging.INFO, "cluster.replica.replica")
    config = replace(config, scaling=replace(config.scaling, start_s=budget_s))
    async with cluster(config) as local:
        records = {record.id: record for record in await local.directory.members()}
    for replica in ("prefill-0", "decode-0"):
        took_s = records[replica].start_s
        assert took_s.keys() | BEFORE | ON_A_GPU == described()
        assert all(seconds >= 0 for seconds in took_s.values())
    late = [r for r in caplog.records if r.getMessage() == "start beyond its budget"]
    assert len(late) == (2 if budget_s < 1 else 0)
    for told in map(vars, late):
        assert told["longest"] in described()
        assert told["seconds"] > told["budget_s"] == budget_s


@pytest.mark.parametrize("fails", [False, True])
async def test_what_streams_would_stand_still_for_is_done_before(
    config, model, monkeypatch, caplog, fails
):
    """Recorded steps, with a stand-in for the graphs; where they fail, steps stay as they were."""
    caplog.set_level(logging.INFO, "engine.model.cuda_graphs")
    choose_runner = choose.choose_runner
    used = []

    def recorder(device):
        if fails:
            raise ValueError("no graphs here")
        return lambda step: lambda: used.append(step.args) or step()

    def chosen(description, *others):
        runner, _ = choose_runner(description, *others)
        return runner, RecordedSteps(runner, description.context_tokens, others[-1])

    monkeypatch.setattr("engine.runtime.engine.choose_runner", chosen)
    monkeypatch.setattr(choose, "CudaGraphs", recorder)
    async with cluster(config) as local:
        for record in await local.directory.members():
            assert ("improvement" in record.start_s) == (record.role != "router")
            timed = record.role != "router" and not fails
            assert (record.load.passes is not None) == timed
        recorded = [r for r in caplog.records if "recorded in" in r.getMessage()]
        # Nine sizes of batches up to `decode.max_batch`, on each of two replicas.
        assert len(recorded) == (0 if fails else 18)
        tokens, _ = await ask(local, PROMPT)
        assert tokens == expected(model, PROMPT)
    assert bool(used) != fails
