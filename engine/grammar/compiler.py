"""Compiles grammars by llguidance, within its limits.

llguidance bounds each mask by fuel, but no compilation: some schemas take minutes, and a long chain
of references ends the process. So a router has each grammar compiled in a process of its own first
(`engine/grammar/trial.py`). A replica compiles what passed there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from engine.errors import InvalidRequest, UnsupportedModel
from engine.grammar.matcher import CompiledGrammar
from engine.grammar.schema_check import deepest, read_schema
from engine.grammar.special_names import SpecialNames, largest_id
from engine.types.grammar import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Bounds: a mask takes 4 ms of a core at most, and the states of one stream 40 MB.
_LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
# JSON by the standard, with little whitespace: a model may else fill its answer with it.
_JSON: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}",
    "coerce_one_of": False,
    "lenient": False,
}
_SHOWN_CHARACTERS = 200
# A rule that is one token, as `cluster/parsing/call_grammar.py` writes markers.
_TOKEN_RULE = re.compile(r"^(mark_\d+: )<\[(\d{1,9})\]>$", re.MULTILINE)


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    `tokenizer` is the JSON of the `tokenizers` library, and `vocabulary` the width of the model's
    logits. Raises UnsupportedModel for a tokenizer that llguidance does not know, or a model
    without a token that ends a text.
    """

    def __init__(self, tokenizer: str, vocabulary: int, eos_ids: Collection[int]) -> None:
        if not eos_ids:
            raise UnsupportedModel("a model without an end token cannot follow a grammar")
        document = json.loads(tokenizer)
        known = largest_id(document) + 1
        self._names = SpecialNames(document)
        try:
            self._tokens = LLTokenizer(
                json.dumps(document), n_vocab=max(vocabulary, known), eos_token=sorted(eos_ids)
            )
        except ValueError as error:
            raise UnsupportedModel(f"this tokenizer cannot follow a grammar: {error}") from None
        self._bytes = LLTokenizer(TokenizerWrapper(_Bytes()))
        self._eos_ids = frozenset(eos_ids)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar; raises InvalidRequest that says where it is wrong."""
        try:
            source, schema = _source_of(self._numbered(grammar))
            matcher = self._matcher(source)
            if matcher.is_error():
                raise InvalidRequest(self._reason(matcher, schema))
        except InvalidRequest as error:
            message = f"{grammar.field}: {error.message}"
            raise InvalidRequest(message, field=grammar.field) from None

        def on_bytes() -> LLMatcher:
            written, _ = _source_of(self._written(grammar))
            return LLMatcher(self._bytes, written, log_level=0, limits=_LIMITS)

        return CompiledGrammar(matcher, on_bytes, self._eos_ids, self._tokens.vocab_size)

    def _numbered(self, grammar: Grammar) -> Grammar:
        if grammar.kind != "lark":
            return grammar
        return replace(grammar, text=self._names.numbered(grammar.text))

    def _written(self, grammar: Grammar) -> Grammar:
        """The grammar with the texts of special tokens in the place of rules that are a token."""
        if grammar.kind != "lark":
            return grammar

        def text(found: re.Match[str]) -> str:
            return found[1] + json.dumps(self._names.text(int(found[2])), ensure_ascii=False)

        return replace(grammar, text=_TOKEN_RULE.sub(text, grammar.text))

    def _matcher(self, source: str) -> LLMatcher:
        return LLMatcher(self._tokens, source, log_level=0, limits=_LIMITS)

    def _reason(self, matcher: LLMatcher, schema: dict[str, Any] | None) -> str:
        message = matcher.get_error()
        if schema is None:
            return _on_one_line(self._names.own(message))

        def fails_alike(part: dict[str, Any]) -> bool:
            return bool(self._matcher(_from_schema(part)).get_error() == message)

        return f"{deepest(schema, fails_alike)}: {_on_one_line(message)}"


class _Bytes:
    """A tokenizer whose tokens are the 256 bytes, for `llguidance.TokenizerWrapper`."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes((byte,)) for byte in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _source_of(grammar: Grammar) -> tuple[str, dict[str, Any] | None]:
    """The grammar in llguidance's form, and its schema where it is one."""
    grammar.check_size()
    if grammar.kind == "json_schema":
        schema = read_schema(grammar.text)
        return _from_schema(schema), schema
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text), None
    try:
        # `ebnf` takes Lark too.
        if grammar.kind == "choice":
            return grammar_from("choice", grammar.text), None
        return grammar_from("ebnf", grammar.text), None
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(_on_one_line(str(error))) from None


def _from_schema(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)


def _on_one_line(message: str) -> str:
    """An error of llguidance without its drawings; a drawn place becomes a number."""
    lines = message.replace("<non-verbose/>", "").splitlines()
    kept, column = [], 0
    for line in lines:
        stripped = line.strip()
        if stripped and not stripped.strip("^"):
            column = column or line.index("^") - 3
        elif stripped and not re.match(r"\d+ \|", stripped):
            kept.append(stripped)
    text = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", ", ".join(kept))
    if column > 0 and "regex parse error" in text:
        text = f"character {column} of a regex: {text.rpartition('error: ')[2]}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
