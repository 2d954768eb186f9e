"""Markdown tables."""

from __future__ import annotations

import pytest

from bench.core.markdown_tables import table


def test_a_table_has_names_left_and_figures_right():
    assert table(["a", "b"], [["x", "1"], ["y", "2"]]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x | 1 |",
        "| y | 2 |",
    ]
    with pytest.raises(ValueError, match="2 cells"):
        table(["a", "b"], [["x"]])
