"""Prepares a chat: its token ids, the form of its answers, and the sampling that forces calls."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.api.prompts import ROLES, ChatPrompt
from cluster.parsing.selection import FormSelection
from cluster.parsing.template_input import render
from engine.errors import InvalidRequest
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat as token ids, and the form of its answers, as in Started.

    Of the `samplings` the first one is best whose grammar can be compiled; the last one must be.
    """

    ids: tuple[int, ...]
    form: str
    samplings: tuple[SamplingParams, ...]


def check_messages(prompt: ChatPrompt) -> None:
    """Raise InvalidRequest for a chat without turns, or with an unknown role."""
    if not prompt.messages:
        raise InvalidRequest("messages must not be empty", field="messages")
    for message in prompt.messages:
        if message.role not in ROLES:
            raise InvalidRequest(f"unknown role {message.role!r}", field="messages")


def prepare_chat(
    tokenizer: Tokenizer, forms: FormSelection, prompt: ChatPrompt, sampling: SamplingParams
) -> PreparedChat:
    """Render and tokenize a chat; raises InvalidRequest."""
    rendered = render(tokenizer, prompt)
    if not rendered.ids:
        raise InvalidRequest("the prompt is empty", field="messages")
    form = forms.form(prompt, rendered, sampling.grammar)
    shown = tuple(sorted({*sampling.shown_token_ids, *forms.shown(form)}))
    sampling = replace(sampling, shown_token_ids=shown)
    grammars = forms.grammars(prompt.use, form, sampling.grammar)
    samplings = tuple(replace(sampling, grammar=grammar) for grammar in grammars or (None,))
    return PreparedChat(tuple(rendered.ids), form.text(), samplings)
