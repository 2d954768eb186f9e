"""Markdown tables, in a document."""

from __future__ import annotations

import pytest

from bench.core.markdown_tables import put, table


def test_a_table_has_names_left_and_figures_right():
    assert table(["a", "b"], [["x", "1"], ["y", "2"]]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x | 1 |",
        "| y | 2 |",
    ]
    with pytest.raises(ValueError, match="2 cells"):
        table(["a", "b"], [["x"]])


def test_a_document_keeps_what_is_around_the_place(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- engine -->\nold\n<!-- /engine -->\nafter\n")
    for _ in range(2):
        put(document, "engine", "\nnew\n\n")
        assert document.read_text() == "before\n<!-- engine -->\nnew\n<!-- /engine -->\nafter\n"
    with pytest.raises(ValueError, match="peers"):
        put(document, "peers", "new")
