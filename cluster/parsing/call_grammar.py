"""Grammars of answers with calls: those that must come, and those that may.

They are in llguidance's form of Lark. A tool with `strict` forces the schema of its arguments.
Where a call must come, other tools do, too, if their schemas can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster.api.chats.tools import Tool, ToolUse, json_object
from cluster.parsing import deepseek, hermes, mistral
from engine.errors import InvalidRequest
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
_TEXT = r"TEXT: /(.|\n)*/"


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls stand in an answer; `name` stands where the JSON of a tool's name does.

    `before` opens all of them, and `trigger` of it stands in no other text; None: calls begin the
    answer. Each call has `head`, the arguments and `tail`; `between` stands between two.
    """

    head: str
    tail: str
    between: str
    trigger: str | None
    before: str = ""
    after: str = ""
    bare_name: bool = False


_NAME = "\0"
_OBJECT = f'{{"name": {_NAME}, "arguments": '
HERMES = CallForm(f"{hermes.OPEN}\n{_OBJECT}", f"}}\n{hermes.CLOSE}", "\n", hermes.OPEN)
LLAMA3 = CallForm(f'{{"name": {_NAME}, "parameters": ', "}", "; ", None)
MISTRAL_LIST = CallForm(_OBJECT, "}", ", ", mistral.CALLS, f"{mistral.CALLS}[", "]")
MISTRAL = CallForm(f"{mistral.CALLS}{_NAME}{mistral.ARGS}", "", "", mistral.CALLS, bare_name=True)
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
    if calls == "llama3":
        return LLAMA3
    if calls == "mistral":
        return MISTRAL if mistral.ARGS in templates else MISTRAL_LIST
    if calls == "deepseek":
        return DEEPSEEK_V3 if "```json" in templates else DEEPSEEK
    return HERMES


def call_grammars(
    form: CallForm, use: ToolUse, content: Grammar | None, thought: tuple[str, str, bool] | None
) -> list[Grammar]:
    """The grammars of the answers to a chat, the best first; the last one must do.

    `content` is what the client asked for. `thought` has the markers of reasoning, and whether
    the prompt opens it. Nothing: any text will do. Raises InvalidRequest for a contradiction.
    """
    if not use.offered:
        if content is None or content.kind != "json_schema" or thought is None:
            return [] if content is None else [content]
        start, rules = _thought(thought)
        rules = [f"start: {start} content", *rules, f"content: %json {_schema(content.text)}"]
        return [replace(_tools_grammar(rules), field=content.field)]
    if content is not None and content.kind != "json_schema":
        message = f"{content.field}: with tools it must be a JSON schema"
        raise InvalidRequest(message, field=content.field)
    if use.forced:
        if content is not None:
            message = f"tool_choice requires a call, and {content.field} an answer"
            raise InvalidRequest(message, field="tool_choice")
        return _both(lambda loosely: _forced(form, use, thought, loosely), use.forced)
    if content is not None:
        return _both(lambda loosely: _either(form, use, content, thought, loosely), use.tools)
    if any(tool.strict for tool in use.tools):
        return [_tools_grammar(_optional(form, use))]
    return []


def _both(rules: Callable[[bool], list[str]], tools: Sequence[Tool]) -> list[Grammar]:
    """With the schemas of all tools, and with those of strict tools alone, if they differ."""
    found = [_tools_grammar(rules(False))]
    if any(tool.parameters and not tool.strict for tool in tools):
        found.append(_tools_grammar(rules(True)))
    return found


def _tools_grammar(rules: Sequence[str]) -> Grammar:
    return Grammar("lark", "\n".join(("%llguidance {}", *rules)), "tools")


def _forced(
    form: CallForm, use: ToolUse, thought: tuple[str, str, bool] | None, loosely: bool
) -> list[str]:
    start, rules = _thought(thought)
    most = 1 if use.named or not use.parallel else _MOST_CALLS
    return [f"start: {start} calls", *rules, *_calls(form, use.forced, most, loosely)]


def _either(
    form: CallForm,
    use: ToolUse,
    content: Grammar,
    thought: tuple[str, str, bool] | None,
    loosely: bool,
) -> list[str]:
    start, rules = _thought(thought)
    most = _MOST_CALLS if use.parallel else 1
    return [
        f"start: {start} (calls | content)",
        *rules,
        f"content: %json {_schema(content.text)}",
        *_calls(form, use.tools, most, loosely),
    ]


def _optional(form: CallForm, use: ToolUse) -> list[str]:
    """Any text with calls in it, as models write it."""
    most = _MOST_CALLS if use.parallel else 1
    if form.trigger is None:
        rules = ["start: calls | PLAIN", r"PLAIN: /([^{\s](.|\n)*)?/"]
        return [*rules, *_calls(form, use.tools, most, loosely=True)]
    rules = ["start: TEXT | begun rest"]
    begun = f"begun[lazy]: TEXT {_quoted(form.trigger)}"
    return [*rules, begun, _TEXT, *_calls(form, use.tools, most, loosely=True, begun=True)]


def _thought(thought: tuple[str, str, bool] | None) -> tuple[str, list[str]]:
    """What stands before the answer, and its rules."""
    if thought is None:
        return "", []
    opening, closing, inside = thought
    rules = [f"thought[lazy]: TEXT {_quoted(closing)}", _TEXT, r"SPACE: /\n{0,2}/"]
    return ("thought SPACE" if inside else f"({_quoted(opening)} thought SPACE)?"), rules


def _calls(
    form: CallForm, tools: Sequence[Tool], most: int, loosely: bool, *, begun: bool = False
) -> list[str]:
    """The rule `calls`; or `rest`, where the trigger stands before it already."""
    before = form.before + form.head if begun else form.before
    names = " | ".join(f"tool_{index}" for index in range(len(tools)))
    more = f"({_quoted(form.between)} call){{0,{most - 1}}}" if most > 1 else ""
    rules = [f"call: {names}"]
    for index, tool in enumerate(tools):
        schema = tool.parameters if tool.strict or not loosely else ""
        body = f"args_{index} {_quoted(form.tail)}"
        rules.append(f"tool_{index}: {_quoted(_head(form, tool))} {body}")
        rules.append(f"args_{index}: %json {_schema(schema or JSON_OBJECT)}")
        if begun:
            first = (form.before + _head(form, tool)).removeprefix(form.trigger or "")
            rules.append(f"first_{index}: {_quoted(first)} {body}")
    if begun:
        firsts = " | ".join(f"first_{index}" for index in range(len(tools)))
        return [f"rest: ({firsts}) {more} {_quoted(form.after)}", *rules]
    return [f"calls: {_quoted(before)} call {more} {_quoted(form.after)}", *rules]


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


def _schema(text: str) -> str:
    """A schema whose object is written as all of ours are."""
    return json.dumps((json_object(text) or {}) | {"x-guidance": _STYLE}, ensure_ascii=False)
