"""Names of single tokens in listings. A part of a character is named by its bytes, as OpenAI does.

`bytes:\\xc3` names the first half of "é".
"""

from __future__ import annotations

import re

_PREFIX = "bytes:"
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def bytes_of_piece(piece: str, *, single: bool) -> bytes | None:
    """The bytes of a token in the vocabulary, if it is made of bytes.

    `single`: it is a raw byte such as `<0xC3>`. Otherwise each of its characters is a byte in the
    alphabet of GPT-2.
    """
    if single:
        found = _BYTE_TOKEN.fullmatch(piece)
        return None if found is None else bytes.fromhex(found[1])
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:
        return None


def name_of_bytes(raw: bytes) -> str:
    """The name of a token that has these bytes."""
    return _PREFIX + "".join(f"\\x{byte:02x}" for byte in raw)


def bytes_of_name(name: str) -> bytes:
    """The bytes of a token by its name; those of its text where the name is text."""
    found = _BYTES.fullmatch(name)
    if found is None:
        return name.encode(errors="replace")
    return bytes.fromhex(found[1].replace("\\x", ""))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: itself where it is printable, or one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + number): byte for number, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
