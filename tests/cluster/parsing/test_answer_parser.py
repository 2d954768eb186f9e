"""The parts of all choices: random splits, ids, and one call at most."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import Started, TextPart, Tokens, ToolCallDelta
from cluster.parsing.answer_form import AnswerForm
from cluster.parsing.answer_parser import AnswerReader
from cluster.parsing.deepseek import MARKERS as DEEPSEEK
from cluster.parsing.qwen3_coder import MARKERS as QWEN3_CODER
from tests.cluster.parsing.reading import form_of, read
from tests.cluster.parsing.test_call_parsers import CALLS, NO_CALLS

FRAGMENTS = sorted(
    {
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "get"),
        *('{"name": "get", "arguments": {"a": [1, "}"]}}', '{"name"', '"get"', "{", "}", "[", "]"),
        *("<|python_tag|>", ";", ", ", "\n", " ", "text", '"', "\\", ": ", "1", "<", "é"),
        *DEEPSEEK,
        *QWEN3_CODER,
        *("get>", "city>", "n>", "\n1\n", "null", "</param", "\n\n"),
    }
)


@st.composite
def answers(draw) -> tuple[str, list[str]]:
    """A text of valid and broken answers, and the same text in random pieces."""
    whole = [text for _, text, *_ in CALLS] + [text for _, text in NO_CALLS]
    part = st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from(whole))
    text = "".join(draw(st.lists(part, min_size=1, max_size=12)))
    if len(text) == 1:
        return text, [text]
    cuts = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=12)))
    return text, [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(
    answers(),
    st.sampled_from(
        ["", "hermes", "llama3", "mistral", "deepseek", "qwen3_coder", "response_template"]
    ),
    st.booleans(),
    st.booleans(),
)
def test_random_pieces_give_the_same_as_the_whole(answer, calls, thinks, inside):
    text, pieces = answer
    reasoning = "think" if thinks and calls != "response_template" else ""
    form = form_of(calls, reasoning=reasoning, inside=inside)
    by_pieces, by_characters = read(form, pieces), read(form, list(text))
    assert by_pieces[-1] == read(form, [text])[-1] == by_characters[-1]
    at = 0
    for piece, had in zip(pieces, by_pieces, strict=True):
        at += len(piece)
        assert had == by_characters[at - 1]


def test_a_form_is_the_same_behind_json():
    for form in (form_of("hermes", reasoning="think"), form_of("response_template")):
        assert AnswerForm.read(form.text()) == form
    assert AnswerForm().text() == ""


def test_ids_are_of_the_form_the_choice_and_the_call():
    form = form_of("hermes").text()
    text = '<tool_call>{"name": "get"}</tool_call><tool_call>{"name": "put"}</tool_call>'

    def ids(choice: int, key: str = "k") -> list[str]:
        reader = AnswerReader()
        reader.take(Started("r", "m", 1, 1, form=form.replace('"key":"k"', f'"key":"{key}"')))
        tokens = reader.tokens(Tokens(choice, 0, (1,), text, "stop"))
        return [call.id for call in tokens.tool_calls]

    assert ids(0) == ids(0)
    assert len({*ids(0), *ids(1), *ids(0, "other")}) == 6
    assert all(len(one) == 9 and one.isalnum() for one in ids(0)), "as Mistral's templates want"


def test_without_parallel_calls_the_first_call_alone_counts():
    form = replace(form_of("hermes"), parallel=False)
    text = '<tool_call>{"name": "get"}</tool_call><tool_call>{"name": "put"}</tool_call>'
    assert read(form, [text])[-1].calls == (("get", "{}"),)


def test_parts_are_there_where_the_order_is_another_than_that_of_the_fields():
    call = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
    form = form_of("hermes", reasoning="think")

    def parts(text):
        found = AnswerReader(form.text()).take(Tokens(0, 0, (1,), text, "stop"))
        assert found.text + found.reasoning == text.replace(call, "").replace(
            "<think>a</think>", "a"
        )
        kinds = {TextPart: "text", ToolCallDelta: "call"}
        return [getattr(one, "text", "") or kinds[type(one)] for one in found.parts]

    assert parts(call + "b") == ["call", "b"]
    assert parts(f"b{call}c{call}") == ["b", "call", "c", "call"]
    for usual in ("b", f"b{call}", f"{call}{call}", f"<think>a</think>{call}"):
        assert parts(usual) == []
