"""Chooses the form of a model's answers: by its chat template, or as the configuration names it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from cluster.api.chats.tools import Tool, ToolUse
from cluster.api.prompts import ChatPrompt
from cluster.parsing import deepseek, hermes, llama3, mistral, qwen3_coder
from cluster.parsing.answer_form import AnswerForm, CallFormName, ReasoningFormName
from cluster.parsing.call_grammar import call_form, call_grammars
from cluster.parsing.parameter_schema import is_expressible, text_kinds
from cluster.parsing.reasoning import REASONING_FORMS
from cluster.parsing.template_input import template_tool
from engine.errors import ConfigError, InvalidRequest, UnsupportedModel
from engine.text.response_template import answer_prefix, markers_of
from engine.text.tokenizer import RenderedChat, Tokenizer
from engine.types.grammar import Grammar

log = logging.getLogger(__name__)

_MARKERS: dict[str, tuple[str, ...]] = {
    "hermes": hermes.MARKERS,
    "llama3": (llama3.PYTHON_TAG,),
    "mistral": mistral.MARKERS,
    "deepseek": deepseek.MARKERS,
    "qwen3_coder": qwen3_coder.MARKERS,
}

# Why no grammar can hold calls to a strict schema, where the model may call or not.
_NOT_STRICT = {
    "response_template": "its response_template says how calls are read alone",
    "": "router.tool_parser is none, so no calls are read",
}


class FormSelection:
    """The form of the answers of one model. Raises ConfigError for a form that it cannot have.

    A template without a known form gets that of Hermes, which a model can follow as text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        calls: CallFormName = "auto",
        reasoning: ReasoningFormName = "auto",
    ) -> None:
        self._template = _usable(tokenizer.response_template)
        if calls == "response_template" and not self._template:
            message = "router.tool_parser: the model has no response_template that can be used"
            raise ConfigError(message)
        self._templates = templates = tokenizer.chat_templates
        self._calls = calls_of(templates, bool(self._template)) if calls == "auto" else calls
        self._reasoning = reasoning_of(templates) if reasoning == "auto" else reasoning
        if self._calls == "response_template":
            self._reasoning = "none"
        self._shown_of_reasoning = tokenizer.special_within(
            " ".join(REASONING_FORMS.get(self._reasoning, ()))
        )
        self._shown_of_calls = {
            name: tokenizer.special_within(" ".join(markers)) for name, markers in _MARKERS.items()
        }
        self._shown_of_calls["response_template"] = (
            tokenizer.special_within(markers_of(self._template)) if self._template else ()
        )
        known = chain(*_MARKERS.values(), *REASONING_FORMS.values())
        self._marks = tokenizer.special_tokens(known)

    @property
    def calls(self) -> str:
        """The form in which calls are read; "none" for none."""
        return self._calls

    def form(
        self, prompt: ChatPrompt, rendered: RenderedChat, content: Grammar | None
    ) -> AnswerForm:
        """The form of the answers to a prompt; `content` is the grammar that the client gave.

        Calls have the form of Hermes where a grammar forces them, or the schema of a strict tool,
        and no grammar in the model's own form does.
        """
        tools = prompt.use.offered
        own = self._calls == "response_template" and not prompt.use.forced
        calls = self._calls if own or (tools and self._calls != "none") else ""
        unknown = prompt.use.forced and self._calls in ("none", "response_template")
        if unknown or (calls == "qwen3_coder" and not _in_blocks(tools)):
            calls = "hermes"
        opening, _ = REASONING_FORMS.get(self._reasoning, ("", ""))
        # A grammar of another kind has no room for reasoning before it.
        thinks = content is None or content.kind == "json_schema"
        return AnswerForm(
            calls=calls,
            reasoning="" if self._reasoning == "none" else self._reasoning,
            inside=thinks and bool(opening) and rendered.text.rstrip().endswith(opening),
            parallel=prompt.use.parallel,
            key=secrets.token_hex(8) if calls else "",
            tools=tuple(map(_KNOWN[calls], tools)) if calls in _KNOWN else (),
            template=self._template if calls == "response_template" else {},
            prefix=answer_prefix(self._template, rendered.text) if own else "",
        )

    def grammars(self, use: ToolUse, form: AnswerForm, content: Grammar | None) -> list[Grammar]:
        """The grammars of answers of that form, the best first; nothing where any text will do.

        The last one must do. Raises InvalidRequest where tools and `content` contradict.
        """
        if form.calls == "response_template" or (use.offered and not form.calls):
            if any(tool.strict for tool in use.offered):
                why = f"strict tools need tool_choice required: {_NOT_STRICT[form.calls]}"
                raise InvalidRequest(why, field="tools")
            return [] if content is None else [content]
        markers = REASONING_FORMS.get(form.reasoning)
        thought = None if markers is None else (*markers, form.inside)
        calls = call_form(form.calls, self._templates)
        return call_grammars(calls, use, content, thought, self._marks)

    def shown(self, form: AnswerForm) -> tuple[int, ...]:
        """The special tokens whose text the form needs."""
        calls = self._shown_of_calls.get(form.calls, ())
        return (*(self._shown_of_reasoning if form.reasoning else ()), *calls)


def _named(tool: Tool) -> dict[str, Any]:
    """A tool with its name alone."""
    return template_tool(Tool(tool.name))


def _typed(tool: Tool) -> dict[str, Any]:
    """A tool with its name, and how the values of its parameters are read."""
    return {"function": {"name": tool.name, "texts": text_kinds(tool.parameters)}}


# What the parsers that know the tools need of each.
_KNOWN: dict[str, Callable[[Tool], dict[str, Any]]] = {
    "llama3": _named,
    "qwen3_coder": _typed,
    "response_template": template_tool,
}


def _in_blocks(tools: Sequence[Tool]) -> bool:
    """Whether blocks for each argument can hold what strict tools ask for."""
    return all(is_expressible(tool.parameters) for tool in tools if tool.strict)


def _usable(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The model's own description of its answers; empty where there is none of a known form."""
    if not template:
        return {}
    try:
        answer_prefix(template, "")
    except UnsupportedModel as error:
        log.warning("%s", error.message)
        return {}
    return template


def calls_of(templates: str, described: bool) -> str:
    """The form of calls in a chat template; `described`: the model describes its answers."""
    if described:
        return "response_template"
    if deepseek.CALLS_BEGIN in templates:
        return "deepseek"
    if mistral.CALLS in templates:
        return "mistral"
    if qwen3_coder.FUNCTION in templates and qwen3_coder.PARAMETER in templates:
        return "qwen3_coder"
    llama = "<|start_header_id|>" in templates and '"parameters"' in templates
    return "llama3" if llama or llama3.PYTHON_TAG in templates else "hermes"


def reasoning_of(templates: str) -> str:
    """The form of reasoning in a chat template."""
    return next((name for name, pair in REASONING_FORMS.items() if pair[1] in templates), "none")
