"""Tells the control tokens of a chat template from the same text in what a user wrote.

A template is rendered to one text, with what users wrote inside. A tokenizer takes `<|end|>` there
for a control token, whoever wrote it, so that a user could forge turns. Therefore:

1. Before rendering, stand-ins replace the control tokens in what users wrote.
2. After rendering, all control tokens are the template's, and an alias replaces each of them.
3. The text of the users is put back. A copy of the tokenizer, which knows the aliases alone,
   encodes the whole text at once. So all other tokens are those of the tokenizer itself.

Stand-ins and aliases begin with a random key, which no user can know.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from engine.errors import InvalidRequest

# Text that a template searches an answer for: `.split('</think>')`, `'<think>' in content`.
_SEARCHED = re.compile(r"""[.|]\s*\w+\(\s*(['"])(.*?)\1|(['"])([^'"]*)\3\s+(?:not\s+)?in\s""")
_NONE = -1
# Where an answer of a message has such text. Calls of tools have none.
_ANSWER = ("content", "reasoning_content")


class ControlTokens:
    """The control tokens of a tokenizer, and how chats with their text are encoded.

    All added tokens are control tokens, except words and white space, which are vocabulary.
    `template` is the source of the chat template.
    """

    def __init__(self, backend: Backend, template: str) -> None:
        added = backend.get_added_tokens_decoder()
        self._ids = [token for token in sorted(added) if _is_control(added[token])]
        self._id_set = frozenset(self._ids)
        entries = [added[token] for token in self._ids]
        texts = [entry.content for entry in entries]
        self._starts = {text[:end] for text in texts for end in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        self._searched = frozenset(_searched_for(template, entries))
        self._key = secrets.token_hex(8)
        self._stand_in = re.compile(rf"{self._key}u(\d+)z")
        self._cut = f"{self._key}c"
        self._matcher = _matcher(backend, entries)
        self._copy = _bare_copy(backend)
        # Pieces of the tokenizer's model too, which it may make of text.
        self._pieces = frozenset(
            token for token in self._ids if self._copy.id_to_token(token) is not None
        )
        self._real = self._add_aliases(added)
        found = self._copy.encode_batch(texts, add_special_tokens=False)
        self._leaks = any(not self._pieces.isdisjoint(one.ids) for one in found)
        self._finder = _matcher(backend, entries, of_pieces=True) if self._leaks else self._matcher

    def hide(
        self, messages: Sequence[Mapping[str, Any]], hidden: list[str]
    ) -> list[dict[str, Any]]:
        """The messages with stand-ins; `hidden` gets the text behind each stand-in, in order.

        Every string is a user's, also in lists and objects, except each message's `role`.
        """
        changed = []
        for message in messages:
            searched = self._searched if message.get("role") == "assistant" else frozenset()
            changed.append(
                {
                    name: value
                    if name == "role"
                    else self._hide(value, hidden, searched if name in _ANSWER else frozenset())
                    for name, value in message.items()
                }
            )
        return changed

    def hide_all(self, value: Any, hidden: list[str]) -> Any:
        """Tools or fields for a template with stand-ins; `hidden` as in `hide`."""
        return self._hide(value, hidden, frozenset())

    def must_separate(self, hidden: Sequence[str]) -> bool:
        """Whether a rendered text has to be encoded here, and not by the tokenizer itself.

        The model of some tokenizers (Unigram) makes control tokens of plain text, too.
        """
        return bool(hidden) or self._leaks

    def encode(self, text: str, hidden: Sequence[str]) -> list[int]:
        """Token ids of a rendered text, whose control tokens are the template's alone.

        Raises InvalidRequest where the tokenizer cannot encode a control token's text as text.
        """
        parts, end = [], 0
        for number, start, stop in _matches(self._matcher, text):
            parts += [text[end:start], self._alias(self._ids[number])]
            end = stop
        aliased = "".join([*parts, text[end:]])
        # Cut, the text of a control token cannot be one piece of the tokenizer's model.
        for cut in ("", self._cut):
            ids = self._encode(_put_back(aliased, self._stand_in, hidden, cut))
            if self._pieces.isdisjoint(ids):
                real = (self._real.get(one, one) for one in ids)
                return [one for one in real if one != _NONE]
        raise InvalidRequest("messages have the text of a control token", field="messages")

    def _encode(self, text: str) -> list[int]:
        return list(self._copy.encode_batch([text], add_special_tokens=False)[0].ids)

    def _alias(self, token: int) -> str:
        return f"{self._key}t{token}z"

    def _add_aliases(self, added: Mapping[int, AddedToken]) -> dict[int, int]:
        """Add all added tokens to the copy, control tokens by alias; its ids to the real ids."""
        names = {
            token: self._alias(token) if token in self._id_set else entry.content
            for token, entry in sorted(added.items())
        }
        self._copy.add_tokens([_named(added[token], name) for token, name in names.items()])
        self._copy.add_tokens([AddedToken(self._cut, normalized=False)])
        real = {name: token for token, name in names.items()} | {self._cut: _NONE}
        vocabulary = self._copy.get_vocab(with_added_tokens=True)
        return {vocabulary[name]: token for name, token in real.items()}

    def _hide(self, value: Any, hidden: list[str], keep: frozenset[int]) -> Any:
        if isinstance(value, str):
            return self._hide_in(value, hidden, keep)
        if isinstance(value, Mapping):
            return {
                self._hide(name, hidden, keep): self._hide(one, hidden, keep)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._hide(one, hidden, keep) for one in value]
        return value

    def _hide_in(self, text: str, hidden: list[str], keep: frozenset[int]) -> str:
        check_unicode(text, "messages")
        found = _matches(self._finder, text)
        spans = [(start, stop) for number, start, stop in found if number not in keep]
        spans += self._open_end(text, spans)
        parts, end = [], 0
        for start, stop in spans:
            parts += [text[end:start], f"{self._key}u{len(hidden)}z"]
            hidden.append(text[start:stop])
            end = stop
        return "".join([*parts, text[end:]])

    def _open_end(self, text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The end of a text that what the template puts behind it could make a control token."""
        stop = len(text.rstrip())
        least = spans[-1][1] if spans else 0
        for start in range(max(least, stop - self._longest + 1), stop):
            if text[start:stop] in self._starts:
                return [(start, stop)]
        return []


def check_unicode(text: str, field: str) -> None:
    """Raise InvalidRequest, naming `field`, for text that is not Unicode (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field}: not valid Unicode at character {error.start} ({error.reason})"
        raise InvalidRequest(message, field=field) from error


def _is_control(entry: AddedToken) -> bool:
    return entry.special or not all(
        one.isalnum() or one.isspace() or one == "▁" for one in entry.content
    )


def _searched_for(template: str, entries: Sequence[AddedToken]) -> set[int]:
    """The numbers of the control tokens that a template searches answers for.

    Answers have the text of tokens that are not special. A template that leaves the reasoning of
    earlier answers out has to find that text when a client sends an answer back.
    """
    texts = [found[1] or found[3] for found in _SEARCHED.findall(template)]
    return {
        number
        for number, entry in enumerate(entries)
        if not entry.special and any(entry.content in text for text in texts)
    }


def _matcher(
    backend: Backend, entries: Sequence[AddedToken], *, of_pieces: bool = False
) -> Backend:
    """A tokenizer that finds these tokens as `backend` does, and makes no others.

    `of_pieces`: it finds them as the tokenizer's model does, in normalized text.
    """
    matcher = Backend(models.BPE())
    found = [
        AddedToken(
            entry.content,
            single_word=entry.single_word,
            normalized=entry.normalized or of_pieces,
        )
        for entry in entries
    ]
    if backend.normalizer is not None and any(token.normalized for token in found):
        matcher.normalizer = backend.normalizer
    matcher.add_tokens(found)
    return matcher


def _matches(matcher: Backend, text: str) -> list[tuple[int, int, int]]:
    """The control tokens in a text: the number among all, where it begins and ends."""
    found = matcher.encode_batch([text], add_special_tokens=False)[0]
    return [(number, *span) for number, span in zip(found.ids, found.offsets, strict=True)]


def _bare_copy(backend: Backend) -> Backend:
    """The tokenizer without its added tokens. Both share their model."""
    copy = Backend(backend.model)
    if backend.normalizer is not None:
        copy.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        copy.pre_tokenizer = backend.pre_tokenizer
    return copy


def _named(entry: AddedToken, name: str) -> AddedToken:
    """An added token with the behaviour of another."""
    return AddedToken(
        name,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized,
        special=False,
    )


def _put_back(text: str, stand_in: re.Pattern[str], hidden: Sequence[str], cut: str) -> str:
    """The text with what the stand-ins stood for, with `cut` behind each first character."""

    def original(found: re.Match[str]) -> str:
        part = hidden[int(found[1])]
        return part[:1] + cut + part[1:]

    return stand_in.sub(original, text)
