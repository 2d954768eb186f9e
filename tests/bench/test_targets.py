"""The long targets of the Makefile: each says how far it is, by `cluster/work_progress.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_house import ROOT, tree

# They take seconds, or print what they do themselves.
SHORT = ("bench-report",)
BY_THEMSELVES = ("bench-faults",)


def long_targets() -> dict[str, list[str]]:
    """The modules that each long target runs."""
    found = {}
    for block in re.split(r"\n(?=\S)", (ROOT / "Makefile").read_text()):
        name = re.match(r"(bench-[a-z-]+|fuzz|chaos|soak-[a-z]+):", block)
        if name and name[1] not in (*SHORT, *BY_THEMSELVES):
            found[name[1]] = re.findall(r" -m ((?:bench|tests)\.[a-z_.]+)", block)
    return found


def imported(module: str) -> set[str]:
    """The modules of bench and tests that a module imports from, itself, and work_progress."""
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    nodes = ast.walk(tree(path)) if path.is_file() else ()
    names = {one.module for one in nodes if isinstance(one, ast.ImportFrom) and one.module}
    return {module} | {one for one in names if one.startswith(("bench.", "tests.", "cluster.work"))}


@pytest.mark.parametrize(("target", "modules"), long_targets().items())
def test_a_long_target_says_how_far_it_is(target: str, modules: list[str]) -> None:
    assert modules, f"{target} runs no module"
    for module in modules:
        own = module.rpartition(".")[0]
        near = [one for one in imported(module) if one.startswith(own)]
        assert any("cluster.work_progress" in imported(one) for one in near), module


def test_the_targets_are_found() -> None:
    assert {"bench-engine", "bench-gpu", "bench-peers", "fuzz", "soak-transfer"} <= {
        *long_targets()
    }
