"""Parses large JSON in small steps: within a bound of values, and other threads run between them.

`json.loads` holds Python's lock (the GIL) for its whole run: over a second for 4 MiB of small
lists. The steps here are Python's own decoder. A list of plain numbers, as of token ids, is parsed
in pieces by the fast decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from cluster.api.limits import MAX_JSON_VALUES, MAX_PROMPT_TOKENS
from engine.errors import InvalidRequest

# Bounds: a document is small enough for one step; a piece of a list of numbers.
STEP_CHARACTERS = 16 * 1024
_PIECE_CHARACTERS = 32 * 1024
_MOST_DIGITS = 4300  # as Python for integers
_NOT_A_NUMBER = '"[{'
# JSON has them raw; readers that cut lines by Unicode's rules (`str.splitlines`) cut there.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def on_one_line(text: str) -> str:
    """JSON in which every line end of Unicode is escaped."""
    if text.isascii():
        return text
    for character, escape in _LINE_ENDS:
        text = text.replace(character, escape)
    return text


class _LastKey(dict[str, str]):
    """Stands in for the memory of keys of an object, and knows the last one."""

    key: str | None = None

    def setdefault(self, key: str, default: str = "") -> str:
        """The key; see `json.decoder.JSONObject`."""
        self.key = key
        return key


class _BoundedDecoder(json.JSONDecoder):
    """A decoder in Python that counts the values of one document."""

    def __init__(self, refuse_constant: Callable[[str], Any]) -> None:
        super().__init__(parse_constant=refuse_constant)
        self._values = 0
        self._numbers = 0
        self._root: _LastKey | None = None
        self._parse_constant = refuse_constant
        self.parse_array = self._array
        self.parse_object = self._object
        self.parse_string = self._string
        self.parse_int, self.parse_float = self._int, self._float
        self.scan_once = py_make_scanner(self)

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_JSON_VALUES:
            what = f"more than {MAX_JSON_VALUES} values besides lists of token ids"
            raise InvalidRequest(what, field=self.field)

    def _array(self, state: tuple[str, int], scan_once: Any, *rest: Any) -> tuple[list[Any], int]:
        self._count()
        text, begin = state
        end = text.find("]", begin)
        if end < 0 or any(text.find(mark, begin, end) >= 0 for mark in _NOT_A_NUMBER):
            found: tuple[list[Any], int] = JSONArray(state, scan_once, *rest)
            return found
        return self._plain(text, begin, end), end + 1

    def _plain(self, text: str, begin: int, end: int) -> list[Any]:
        """The list in `text[begin:end]`, which has neither strings nor lists nor objects."""
        values: list[Any] = []
        while True:
            cut = text.find(",", begin + _PIECE_CHARACTERS, end)
            stop = end if cut < 0 else cut
            if stop - begin > _PIECE_CHARACTERS + _MOST_DIGITS:
                raise ValueError("a number too long")
            try:
                piece = json.loads(f"[{text[begin:stop]}]", parse_constant=self._parse_constant)
            except json.JSONDecodeError as error:
                place = begin + max(0, error.pos - 1)
                raise json.JSONDecodeError(error.msg, text, min(place, stop)) from None
            # A list may be empty, a piece of a list may not.
            if not piece and (values or cut >= 0):
                raise json.JSONDecodeError("Expecting value", text, begin)
            self._numbers += len(piece)
            if self._numbers > MAX_PROMPT_TOKENS:
                what = f"more than {MAX_PROMPT_TOKENS} token ids"
                raise InvalidRequest(what, field=self.field)
            values += piece
            if cut < 0:
                return values
            begin = cut + 1

    def _object(self, *args: Any) -> Any:
        self._count()
        if self._root is None:
            self._root = _LastKey()
            args = (*args[:-1], self._root)
        return JSONObject(*args)

    @property
    def field(self) -> str | None:
        """The field of the document that is parsed now."""
        return self._root.key if self._root is not None else None

    def _string(self, *args: Any) -> Any:
        self._count()
        return scanstring(*args)

    def _int(self, digits: str) -> int:
        self._count()
        if not digits.isascii():  # the decoder in Python takes other scripts' digits, too
            raise ValueError("no number of JSON")
        return int(digits)

    def _float(self, digits: str) -> float:
        self._count()
        if len(digits) > _MOST_DIGITS or not digits.isascii():
            raise ValueError("no number of JSON, or a number too long")
        return float(digits)


def parse(text: str, refuse_constant: Callable[[str], Any]) -> Any:
    """The document in `text`; raises ValueError, RecursionError, or InvalidRequest for a bound."""
    if len(text) <= STEP_CHARACTERS:
        return json.loads(text, parse_constant=refuse_constant)
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    decoder = _BoundedDecoder(refuse_constant)
    try:
        return decoder.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise InvalidRequest("a number too long", field=decoder.field) from None
    except RecursionError:
        raise InvalidRequest("a value nested too deep", field=decoder.field) from None
