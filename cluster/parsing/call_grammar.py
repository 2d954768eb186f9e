"""Grammars of answers with calls: calls that must come, and calls that may come.

They are in llguidance's form of Lark. A tool with `strict` forces the schema of its arguments.
Where a call must come, other tools do, too, if their schemas can be enforced. A marker that the
tokenizer has as a special token is written as this token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cluster.api.chats.tools import Tool, ToolUse
from cluster.parsing import deepseek, hermes, mistral, qwen3_coder
from cluster.parsing.answer_delta import first_marker
from cluster.parsing.parameter_schema import Schema, parameter_rules
from engine.errors import InvalidRequest
from engine.grammar.schema_check import read_schema
from engine.types.grammar import JSON_OBJECT, Grammar

# As `engine/grammar/compiler.py` has schemas: little whitespace, and no part left out.
_STYLE = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}",
    "coerce_one_of": False,
    "lenient": False,
}
# Bound: calls of one answer that are forced.
_MOST_CALLS = 16
NO_MARKS: Mapping[str, int] = MappingProxyType({})
# Reasoning in an answer: its two markers, and whether the prompt opens it.
Thought = tuple[str, str, bool]
# The rules of the arguments `args_{index}` of a tool, by its schema.
Arguments = Callable[[int, str], list[str]]


def _value(schema: Schema) -> str:
    """A value by a schema, written as all of ours are."""
    return f"%json {json.dumps({**schema, 'x-guidance': _STYLE}, ensure_ascii=False)}"


def _checked(text: str, field: str) -> Schema:
    """The schema in a JSON document; raises InvalidRequest, naming `field`."""
    try:
        return read_schema(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}: {error.message}", field=field) from None


def _object(index: int, schema: str) -> list[str]:
    return [f"args_{index}: {_value(_checked(schema or JSON_OBJECT, 'tools'))}"]


def _blocks(index: int, schema: str) -> list[str]:
    if schema:
        _checked(schema, "tools")
    return parameter_rules(index, schema, _value)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls stand in an answer; `name` stands where the JSON of a tool's name does.

    `before` opens all of them, and `trigger` of it stands in no other text; None: calls begin the
    answer. Each call has `head`, the `arguments` and `tail`; `between` stands between two.
    """

    head: str
    tail: str
    between: str
    trigger: str | None
    before: str = ""
    after: str = ""
    bare_name: bool = False
    arguments: Arguments = _object


_NAME = "\0"
_CALL = f'{{"name": {_NAME}, "arguments": '
HERMES = CallForm(f"{hermes.OPEN}\n{_CALL}", f"}}\n{hermes.CLOSE}", "\n", hermes.OPEN)
LLAMA3 = CallForm(f'{{"name": {_NAME}, "parameters": ', "}", "; ", None)
MISTRAL_LIST = CallForm(_CALL, "}", ", ", mistral.CALLS, f"{mistral.CALLS}[", "]")
MISTRAL = CallForm(f"{mistral.CALLS}{_NAME}{mistral.ARGS}", "", "", mistral.CALLS, bare_name=True)
QWEN3_CODER = CallForm(
    f"{hermes.OPEN}\n{qwen3_coder.FUNCTION}{_NAME}>\n",
    f"{qwen3_coder.FUNCTION_END}\n{hermes.CLOSE}",
    "\n",
    hermes.OPEN,
    bare_name=True,
    arguments=_blocks,
)
DEEPSEEK_V3 = CallForm(
    f"{deepseek.CALL_BEGIN}{deepseek.FUNCTION}{deepseek.SEPARATOR}{_NAME}\n```json\n",
    f"\n```{deepseek.CALL_END}",
    "\n",
    deepseek.CALLS_BEGIN,
    deepseek.CALLS_BEGIN,
    deepseek.CALLS_END,
    bare_name=True,
)
DEEPSEEK = CallForm(
    f"{deepseek.CALL_BEGIN}{_NAME}{deepseek.SEPARATOR}",
    deepseek.CALL_END,
    "",
    deepseek.CALLS_BEGIN,
    deepseek.CALLS_BEGIN,
    deepseek.CALLS_END,
    bare_name=True,
)


def call_form(calls: str, templates: str) -> CallForm:
    """The form that a parser of that name reads, as the chat templates write it."""
    if calls in ("llama3", "qwen3_coder"):
        return LLAMA3 if calls == "llama3" else QWEN3_CODER
    if calls == "mistral":
        return MISTRAL if mistral.ARGS in templates else MISTRAL_LIST
    if calls == "deepseek":
        return DEEPSEEK_V3 if "```json" in templates else DEEPSEEK
    return HERMES


def call_grammars(
    form: CallForm,
    use: ToolUse,
    content: Grammar | None,
    thought: Thought | None,
    marks: Mapping[str, int] = NO_MARKS,
) -> list[Grammar]:
    """The grammars of the answers to a chat, the best first; the last one must do.

    `content` is what the client asked for, and `marks` are the markers that are special tokens.
    Nothing: any text will do. Raises InvalidRequest for a contradiction.
    """
    rules = _GrammarWriter(form, use, content, thought, marks)
    if not use.offered:
        if content is None or content.kind != "json_schema" or thought is None:
            return [] if content is None else [content]
        return [replace(rules.answer(), field=content.field)]
    if content is not None and content.kind != "json_schema":
        message = f"{content.field}: with tools it must be a JSON schema"
        raise InvalidRequest(message, field=content.field)
    if use.forced:
        if content is not None:
            message = f"tool_choice requires a call, and {content.field} an answer"
            raise InvalidRequest(message, field="tool_choice")
        return _both(rules.forced, use.forced)
    if content is not None:
        return _both(rules.either, use.tools)
    if any(tool.strict for tool in use.tools):
        return [rules.optional()]
    return []


def _both(grammar: Callable[[bool], Grammar], tools: Sequence[Tool]) -> list[Grammar]:
    """With the schemas of all tools, and with those of strict tools alone, if they differ."""
    if not any(tool.parameters and not tool.strict for tool in tools):
        return [grammar(False)]
    loose = grammar(True)
    try:
        return [grammar(False), loose]
    except InvalidRequest:
        return [loose]


class _GrammarWriter:
    """Writes the grammars of one chat. `loosely`: with the schemas of strict tools alone."""

    def __init__(
        self,
        form: CallForm,
        use: ToolUse,
        content: Grammar | None,
        thought: Thought | None,
        marks: Mapping[str, int],
    ) -> None:
        self._form = form
        self._use = use
        self._content = content
        self._thought = thought
        self._marks = marks
        self._names = {marker: f"mark_{number}" for number, marker in enumerate(marks)}

    def answer(self) -> Grammar:
        """The content, with reasoning before it."""
        start, rules = self._reasoning()
        return self._grammar([f"start: {start} content", *rules, self._by_schema()])

    def forced(self, loosely: bool) -> Grammar:
        """Calls."""
        start, rules = self._reasoning()
        most = 1 if self._use.named else self._most
        calls = self._calls(self._use.forced, most, loosely)
        return self._grammar([f"start: {start} calls", *rules, *calls])

    def either(self, loosely: bool) -> Grammar:
        """Calls or the content."""
        start, rules = self._reasoning()
        calls = self._calls(self._use.tools, self._most, loosely)
        start = f"start: {start} (calls | content)"
        return self._grammar([start, *rules, self._by_schema(), *calls])

    def optional(self) -> Grammar:
        """Any text with calls in it, as models write it."""
        trigger, tools = self._form.trigger, self._use.tools
        if trigger is None:
            rules = ["start: calls | PLAIN", r"PLAIN: /([^{\s](.|\n)*)?/"]
            return self._grammar([*rules, *self._calls(tools, self._most, loosely=True)])
        rules = ["start: BEGUN_TEXT | begun rest", *self._up_to("begun", trigger)]
        calls = self._calls(tools, self._most, loosely=True, begun=True)
        return self._grammar([*rules, *calls])

    @property
    def _most(self) -> int:
        return _MOST_CALLS if self._use.parallel else 1

    def _grammar(self, rules: Sequence[str]) -> Grammar:
        marks = [f"{self._names[marker]}: <[{token}]>" for marker, token in self._marks.items()]
        return Grammar("lark", "\n".join(("%llguidance {}", *rules, *marks)), "tools")

    def _by_schema(self) -> str:
        assert self._content is not None
        return f"content: {_value(_checked(self._content.text, self._content.field))}"

    def _reasoning(self) -> tuple[str, list[str]]:
        """What stands before the answer, and its rules."""
        if self._thought is None:
            return "", []
        opening, closing, inside = self._thought
        rules = [*self._up_to("thought", closing), r"SPACE: /\n{0,2}/"]
        return ("thought SPACE" if inside else f"({self._text(opening)} thought SPACE)?"), rules

    def _up_to(self, name: str, marker: str) -> list[str]:
        """The rules of any text up to the first marker, and of `{NAME}_TEXT` without the marker."""
        text = f"{name.upper()}_TEXT"
        if marker not in self._marks:
            return [f"{name}[lazy]: {text} {_quoted(marker)}", rf"{text}: /(.|\n)*/"]
        within = re.escape(marker).replace("/", r"\/")
        without = rf"{text}: /(.|\n)*/ & ~/(.|\n)*{within}(.|\n)*/"
        return [f"{name}: {text} {self._names[marker]}", without]

    def _calls(
        self, tools: Sequence[Tool], most: int, loosely: bool, *, begun: bool = False
    ) -> list[str]:
        """The rule `calls`; or `rest`, where the trigger stands before it already."""
        form, text = self._form, self._text
        names = " | ".join(f"tool_{index}" for index in range(len(tools)))
        more = f"({text(form.between)} call){{0,{most - 1}}}" if most > 1 else ""
        rules = [f"call: {names}"]
        for index, tool in enumerate(tools):
            schema = tool.parameters if tool.strict or not loosely else ""
            body = f"args_{index} {text(form.tail)}"
            rules.append(f"tool_{index}: {text(_head(form, tool))} {body}")
            rules += form.arguments(index, schema)
            if begun:
                first = (form.before + _head(form, tool)).removeprefix(form.trigger or "")
                rules.append(f"first_{index}: {text(first)} {body}")
        if begun:
            firsts = " | ".join(f"first_{index}" for index in range(len(tools)))
            return [f"rest: ({firsts}) {more} {text(form.after)}", *rules]
        return [f"calls: {text(form.before)} call {more} {text(form.after)}", *rules]

    def _text(self, text: str) -> str:
        """A text in Lark, its marks as special tokens; nothing for an empty one."""
        found = first_marker(text, tuple(self._marks)) if self._marks else None
        if found is None:
            return _quoted(text)
        at, marker = found
        rest = self._text(text[at + len(marker) :])
        return f"{_quoted(text[:at])} {self._names[marker]} {rest}".strip()


def _head(form: CallForm, tool: Tool) -> str:
    name = tool.name if form.bare_name else json.dumps(tool.name)
    return form.head.replace(_NAME, name)


def _quoted(text: str) -> str:
    """A text in Lark; nothing for an empty one.

    A brace at its beginning is a lexeme of its own, as in schemas, so that either may follow.
    """
    if text.startswith("{") and len(text) > 1:
        return f'"{{" {_quoted(text[1:])}'
    return json.dumps(text, ensure_ascii=False) if text else ""
