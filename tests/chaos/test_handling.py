"""Each kind of handling has its code, and its test; `tests.chaos.without` runs them apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.chaos.handling import HANDLINGS
from tests.chaos.without import copied, survives

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("handling", HANDLINGS, ids=lambda one: one.name)
def test_its_code_and_its_test_are_there(handling):
    assert (ROOT / handling.file).read_text().count(handling.code) == 1
    file, name = handling.test.split("::")
    functions = ast.walk(ast.parse((ROOT / file).read_text()))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    assert name in {node.name for node in functions if isinstance(node, kinds)}


def test_names_are_told_apart():
    assert len({one.name for one in HANDLINGS}) == len(HANDLINGS)


def test_a_test_fails_without_its_handling(tmp_path):
    """Of one that takes no time; `python -m tests.chaos.without` does it for all."""
    (handling,) = [one for one in HANDLINGS if one.name == "silent replica"]
    copied(tmp_path)
    assert not survives(handling, tmp_path)
    assert (tmp_path / handling.file).read_text().count(handling.code) == 1
