"""Reasoning before an answer, at each split point."""

import pytest

from tests.cluster.parsing.reading import check_splits, form_of

CALL = '<tool_call>{"name": "put"}</tool_call>'


@pytest.mark.parametrize(
    "text, inside, reasoning, content",
    [
        ("<think>\nso { \n</think>\n\nYes. ", False, "so {", "Yes. "),
        ("so\n</think>\n\nYes.", True, "so", "Yes."),
        ("so on </thi", True, "so on </thi", ""),
        ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
        ("  <thin", False, "", "  <thin"),
        (" " * 70 + "<think>", False, "", " " * 70 + "<think>"),
    ],
)
@pytest.mark.parametrize("calls", ["", "hermes"])
def test_reasoning_is_split_from_content(calls, text, inside, reasoning, content):
    had = check_splits(form_of(calls, reasoning="think", inside=inside), text)
    assert (had.reasoning, had.content) == (reasoning, content)


def test_calls_within_reasoning_are_no_calls():
    text = f"so {CALL} </think>\n{CALL}"
    had = check_splits(form_of("hermes", reasoning="think", inside=True), text)
    assert had.reasoning == f"so {CALL}" and had.calls == (("put", "{}"),)


def test_a_response_template_has_its_own_reasoning():
    had = check_splits(form_of("response_template"), "<think>hm </think>Hi<|im_end|>")
    assert had.reasoning.strip() == "hm" and had.content == "Hi"
