"""How sentences, words and anchors are found in Markdown."""

from __future__ import annotations

import pytest

from docs.prose import anchors, sentences


def found(text: str) -> list[tuple[int, str, int]]:
    return [(one.line, one.text, one.words) for one in sentences(text)]


def test_sentences_span_lines_and_are_reported_by_their_first_line() -> None:
    text = "# A heading.\n\nThe router waits. It\nasks again, and\nagain. Then it ends.\n"
    assert found(text) == [
        (3, "The router waits.", 3),
        (3, "It asks again, and again.", 5),
        (5, "Then it ends.", 3),
    ]


def test_fences_tables_and_comments_are_no_prose() -> None:
    text = (
        "Before.\n\n```\nNot. This.\n```\n\n| a. | B. |\n|---|---|\n<!-- Nor. This. -->\nAfter.\n"
    )
    assert [text for _, text, _ in found(text)] == ["Before.", "After."]


@pytest.mark.parametrize(
    "text",
    [
        "A pool, e.g. Prefill, sleeps.",
        "Read docs/check.py and values.yaml first.",
        "The step takes 1.5 s here.",
        "The method of R. Moore is used.",
        "Set `a.b: C. D` there.",
    ],
)
def test_some_stops_end_nothing(text: str) -> None:
    assert len(found(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It ends (here.) The next one begins.",
        "**It ends.** The next one begins.",
        "It ends. `tandem stop` begins.",
        "Does it end? It does.",
        "It ends. *The* next one begins.",
        "It ends after 3 s. The next one begins.",
    ],
)
def test_some_stops_end_a_sentence(text: str) -> None:
    assert len(found(text)) == 2


def test_items_of_a_list_are_texts_of_their_own() -> None:
    text = "It has:\n\n- one thing,\n  in two lines\n- another. And more.\n1. a number\n"
    assert [(line, words) for line, _, words in found(text)] == [
        (1, 2),
        (3, 5),
        (5, 1),
        (5, 2),
        (6, 2),
    ]


def test_a_span_of_code_and_a_link_count_as_what_is_read() -> None:
    ((_, _, words),) = found("Run `tandem serve --port 1` and read [the page](a/b.md) - now.")
    assert words == 7


def test_anchors_are_those_of_github() -> None:
    text = "# The `kv` section\n\n## What, why?\n\n## What, why?\n\n```\n# no heading\n```\n"
    assert anchors(text) == {"the-kv-section", "what-why", "what-why-1"}
