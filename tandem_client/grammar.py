"""The grammar of a structured answer, as a client asks for it, and its bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from tandem_client.errors import InvalidRequest

# `choice`: the text is a JSON list of strings.
GrammarKind = Literal["json_schema", "regex", "lark", "choice"]
GRAMMAR_KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)

# Promises: the public limits of a grammar.
MAX_GRAMMAR_BYTES = 128 * 1024
MAX_REGEX_BYTES = 8 * 1024
MAX_GRAMMAR_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar that an answer follows. `field` is the client's name for it, in errors."""

    kind: GrammarKind
    text: str
    field: str = field(default="grammar", compare=False)

    def check_size(self) -> None:
        """Raise InvalidRequest where the text is empty or too long."""
        most = MAX_REGEX_BYTES if self.kind == "regex" else MAX_GRAMMAR_BYTES
        if not self.text:
            raise InvalidRequest(f"{self.field}: the {self.kind} is empty", field=self.field)
        # A character has at least one byte, so a text that is far too long is not encoded.
        if len(self.text) > most or len(self.text.encode("utf-8", "replace")) > most:
            message = f"{self.field}: a {self.kind} must have at most {most} bytes"
            raise InvalidRequest(message, field=self.field)


def choice_grammar(texts: Sequence[str], field: str = "grammar") -> Grammar:
    """The grammar of an answer that is one of these texts; raises InvalidRequest."""
    if not 0 < len(texts) <= MAX_GRAMMAR_CHOICES:
        message = f"{field}: 1 to {MAX_GRAMMAR_CHOICES} choices, not {len(texts)}"
        raise InvalidRequest(message, field=field)
    if not all(texts):
        raise InvalidRequest(f"{field}: a choice is empty", field=field)
    if sum(map(len, texts)) > MAX_GRAMMAR_BYTES:
        message = f"{field}: the choices must have at most {MAX_GRAMMAR_BYTES} bytes"
        raise InvalidRequest(message, field=field)
    return Grammar("choice", json.dumps(texts, ensure_ascii=False), field)
