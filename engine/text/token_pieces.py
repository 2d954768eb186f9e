"""The text of single tokens, for tokenizers whose decoder goes token by token.

A decoder gets the tokens of a text and joins what each of them gives. With most decoders a token
gives the same text behind any token, but for these: parts of a character, and the first token of a
text. Such a decoder needs no call for each token of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_REPLACEMENT = "\ufffd"
# Decoders that give each token its text, and change at most the first character of the whole text.
_WHOLE = ("ByteLevel", "Metaspace")
_BY_TOKEN = ("ByteFallback", "Replace")
_BEHIND = ("Fuse", "Strip")


def goes_by_token(decoder: Mapping[str, Any] | None) -> bool:
    """Whether a token's text depends on no whole token beside it.

    `decoder` is the one of the `tokenizers` library, as in its JSON.
    """
    if decoder is None or decoder["type"] != "Sequence":
        return decoder is not None and decoder["type"] in _WHOLE
    parts = decoder["decoders"]
    kinds = [part["type"] for part in parts]
    if len(kinds) == 1:
        return kinds[0] in _WHOLE
    behind = next((place for place, kind in enumerate(kinds) if kind in _BEHIND), len(kinds))
    if any(part.get("stop") for part in parts):
        return False
    return all(kind in _BY_TOKEN for kind in kinds[:behind]) and kinds[behind:] in (
        ["Fuse"],
        ["Fuse", "Strip"],
    )


class TokenPieces:
    """The texts of tokens behind another token; each is found once.

    `anchors` are tokens of which one has text. Without one no token has a piece.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], anchors: Iterable[int]) -> None:
        self._decode = decode
        self._known: dict[int, str | None] = {}
        self._anchor = next((token for token in anchors if decode([token]).isalnum()), None)

    def of(self, token: int) -> str | None:
        """The token's text behind a whole token; None where it has none or depends on others."""
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def _find(self, token: int) -> str | None:
        if self._anchor is None:
            return None
        before, text = self._decode([self._anchor]), self._decode([self._anchor, token])
        piece = text[len(before) :]
        whole = text.startswith(before) and _REPLACEMENT not in piece
        return piece if piece and whole else None


def decoder_of(backend: Any) -> Mapping[str, Any] | None:
    """The decoder of a tokenizer of the `tokenizers` library, as in its JSON."""
    decoder = backend.decoder
    if decoder is None:
        return None
    found: Mapping[str, Any] = json.loads(decoder.__getstate__())
    return found
