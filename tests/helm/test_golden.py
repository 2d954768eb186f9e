"""The examples render to what is kept in golden/; `make helm-golden` writes it anew."""

from __future__ import annotations

import pytest

from tests.helm.chart import EXAMPLES, GOLDEN, golden


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_to_its_golden_text(name: str) -> None:
    assert golden(name) == (GOLDEN / f"{name}.txt").read_text(), "make helm-golden, and read it"


def test_no_golden_text_is_without_its_example() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == EXAMPLES
