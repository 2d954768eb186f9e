"""Each form of calls, at each split point of its text."""

import pytest

from cluster.parsing.deepseek import CALL_BEGIN as CALL
from cluster.parsing.deepseek import CALL_END, CALLS_END
from cluster.parsing.deepseek import CALLS_BEGIN as BLOCK
from cluster.parsing.deepseek import SEPARATOR as SEP
from tests.cluster.parsing.reading import check_splits, form_of, read

ARGUMENTS = '{"city": "Pa\\"r}is", "n": [1, {"a": 2}]}'
GET, PUT = ("get", ARGUMENTS), ("put", "{}")
CALLS = [
    (
        "hermes",
        f'Hi \n<tool_call>\n{{"name": "get", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "put"}</tool_call>\n',
        "Hi",
        (GET, PUT),
    ),
    ("hermes", 'a <tool_call>{"name": "put"}</tool_call> b', "a  b", (PUT,)),
    ("hermes", '<tool_call>{"name": "put", "arguments": "{}"}', "", (PUT,)),
    ("hermes", '<tool_call>{"name": "put", "arguments": null}', "", (PUT,)),
    (
        "hermes",
        '<tool_call>{"name": "get", "arguments": {"a": 1\n</tool_call><tool_call>{"name": "put"}',
        "",
        (("get", '{"a": 1\n'), PUT),
    ),
    (
        "llama3",
        f'{{"name": "get", "parameters": {ARGUMENTS}}}; {{"name": "put", "parameters": {{}}}}',
        "",
        (GET, PUT),
    ),
    ("llama3", '<|python_tag|>{"type": "function", "name": "put"}', "", (PUT,)),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get", "arguments": {ARGUMENTS}}}, {{"name": "put"}}]',
        "",
        (GET, PUT),
    ),
    (
        "mistral",
        f"so [TOOL_CALLS]get[ARGS]{ARGUMENTS}[TOOL_CALLS]put[CALL_ID]abc[ARGS]{{}}",
        "so",
        (GET, PUT),
    ),
    (
        "deepseek",
        f"Ok \n{BLOCK}{CALL}function{SEP}get\n```json\n{ARGUMENTS}\n```{CALL_END}\n"
        f"{CALL}function{SEP}put\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
        "Ok",
        (GET, PUT),
    ),
    (
        "deepseek",
        f"{BLOCK}{CALL}get{SEP}{ARGUMENTS}{CALL_END}{CALL}put{SEP}{{}}{CALL_END}{CALLS_END}",
        "",
        (GET, PUT),
    ),
    (
        "qwen3_coder",
        'Hi \n<tool_call>\n<function=get>\n<parameter=city>\nPa"r\nis\n\n</parameter>\n'
        '<parameter=n>\n[1, {"a": 2}]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=put>\n</function>\n</tool_call>",
        "Hi",
        (("get", '{"city": "Pa\\"r\\nis\\n", "n": [1, {"a": 2}]}'), PUT),
    ),
    (
        "qwen3_coder",
        "<function=get><parameter=city>12</parameter><parameter=note>null</parameter>"
        "<parameter=n>\nTrue\n</parameter><parameter=m>a < b</parameter></function>",
        "",
        (("get", '{"city": "12", "note": null, "n": true, "m": "a < b"}'),),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=get><parameter=city></parameter><parameter=note>\n12\n</parameter>"
        "<parameter=n>\nNaN\n</parameter></tool_call><function=put></function> so",
        "",
        (("get", '{"city": "", "note": "12", "n": "NaN"}'), PUT),
    ),
    (
        "response_template",
        'Hi\n<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>{"name": "put", "arguments": {}}</tool_call><|im_end|>',
        "Hi",
        (("get", '{"a": 1}'), PUT),
    ),
]
NO_CALLS = [
    ("hermes", "<tool_call>nope</tool_call> x "),
    ("hermes", '<tool_call>{"name": "get", "argum'),
    ("hermes", "a < b <tool"),
    ("hermes", '<tool_call>{"name": 4}</tool_call>'),
    ("llama3", '{"name": "Bob", "parameters": 3}'),
    ("llama3", ' {"answer": 4} yes '),
    ("llama3", 'hello {"name": "get", "parameters": {}}'),
    ("llama3", " <|py"),
    ("mistral", '[TOOL_CALLS][{"x":1}] y'),
    ("mistral", "a [TOOL"),
    ("mistral", "[TOOL_CALLS]" + "x" * 300 + "{}"),
    ("deepseek", "x " + BLOCK[:6]),
    ("qwen3_coder", "a <tool_call> x"),
    ("qwen3_coder", "<tool_call>\n <func"),
    ("qwen3_coder", "<tool_call><function=<b> y "),
    ("qwen3_coder", "<function=" + "x" * 300 + ">"),
]


@pytest.mark.parametrize("form, text, content, calls", CALLS)
def test_calls_are_the_same_at_each_split_point(form, text, content, calls):
    had = check_splits(form_of(form), text)
    assert (had.content, had.calls, had.finish) == (content, calls, "tool_calls")


@pytest.mark.parametrize("form, text", NO_CALLS)
def test_what_is_no_call_is_content(form, text):
    had = check_splits(form_of(form), text)
    assert (had.content, had.calls, had.finish) == (text, (), "stop")


def test_arguments_come_as_they_are_written():
    pieces = ['<tool_call>{"name": "get", "arguments": ', '{"a"', ": 1", "}", "}</tool_call>"]
    had = [one.calls for one in read(form_of("hermes"), pieces)]
    given = ['{"a"', '{"a": 1', '{"a": 1}', '{"a": 1}']
    assert had == [(), *[(("get", text),) for text in given]]


def test_a_broken_answer_of_a_response_template_is_content():
    had = check_splits(form_of("response_template"), "a<tool_call>{bad}</tool_call> b")
    assert had.content == "a{bad} b" and not had.calls


def test_a_key_without_an_end_is_content_once_it_is_long():
    text = '<tool_call>{"' + "k" * 1100 + " <tool_call>"
    assert check_splits(form_of("hermes"), text).content == text


def test_text_of_a_block_comes_as_it_is_written():
    pieces = ["<function=get><parameter=city>\nPa", 'r"', "\n", "i</", "s\n</parameter", ">", "x"]
    had = [one.calls[0][1] for one in read(form_of("qwen3_coder"), pieces)]
    given = ['{"city": "Pa', r'{"city": "Par\"', r'{"city": "Par\"', r'{"city": "Par\"\ni']
    assert had == [*given, rf"{given[-1]}</s", rf'{given[-1]}</s"', rf'{given[-1]}</s"']
