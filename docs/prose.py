"""Markdown as prose: its lines, sentences and headings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^\s*(```|~~~)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_CODE = re.compile(r"``?[^`]+``?")
_LINKED = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_COMMENT = re.compile(r"<!--.*?-->")
# A full stop after these ends no sentence.
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "approx.", "no.", "fig.")
# A sentence ends at a stop, with what closes it, before white space and something that begins one.
_END = re.compile(r"[.!?][)\"'\u201d\u2019]*(?=\s+[\"'(\u201c\u2018]*[A-Z0-9\u0000])")
_CODE_MARK = "\u0000"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, the line where it begins, and its words; a span of code counts as one."""

    line: int
    text: str
    words: int


def prose_of(text: str, *, tables: bool = False) -> Iterator[tuple[int, str]]:
    """The lines outside fences and comments, each with its number from 1."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _FENCE.match(line):
            mark = found.group(1)
            fence = mark if fence is None else None if mark == fence else fence
        elif fence is None and (tables or not line.lstrip().startswith("|")):
            yield number, _COMMENT.sub("", line)


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a page: of paragraphs and list items, without headings and tables."""
    for block in _blocks(text):
        yield from _split(block)


def anchors(text: str) -> set[str]:
    """What a link may name after `#`, as GitHub makes it of the headings."""
    seen: Counter[str] = Counter()
    found = set()
    for _, line in prose_of(text):
        if heading := _HEADING.match(line):
            plain = _LINKED.sub(r"\1", heading.group(1)).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines that are read as one text: a paragraph, or an item of a list."""
    block: list[tuple[int, str]] = []
    last = 0
    for number, line in prose_of(text):
        ends = not line.strip() or _HEADING.match(line) or number != last + 1
        if block and (ends or _ITEM.match(line)):
            yield block
            block = []
        if line.strip() and not _HEADING.match(line):
            block.append((number, _ITEM.sub("", line).strip().removeprefix("> ")))
        last = number
    if block:
        yield block


def _split(block: list[tuple[int, str]]) -> Iterator[Sentence]:
    """A block at its full stops; each sentence with the line that it begins on."""
    text, starts = "", []
    for number, line in block:
        text += " " if text else ""
        starts.append((len(text), number))
        text += line
    # Equal lengths, so that positions are still those of the text as it is written.
    masked = _CODE.sub(lambda code: _CODE_MARK * len(code.group()), text)
    bare = re.sub(r"[*_]", "\u200b", masked)
    begin = 0
    for end in [*_ends(bare), len(text)]:
        lead = len(text[begin:end]) - len(text[begin:end].lstrip())
        part, plain = text[begin:end].strip(), masked[begin:end]
        if words := _words(plain):
            first = max(number for start, number in starts if start <= begin + lead)
            yield Sentence(first, part, words)
        begin = end


def _ends(text: str) -> Iterator[int]:
    """Where a sentence is over."""
    # What only marks emphasis is passed over, in the text and behind the stop.
    kept = [place for place, letter in enumerate(text) if letter != "\u200b"]
    plain = "".join(text[place] for place in kept)
    for found in _END.finditer(plain):
        before = plain[: found.start() + 1].rsplit(maxsplit=1)[-1].lstrip("(\"'")
        # The initial of a name, but not the unit of a number.
        if before.lower() not in _ABBREVIATIONS and not re.fullmatch(r"[A-Z]\.", before):
            yield kept[found.end() - 1] + 1


def _words(text: str) -> int:
    """Words of a masked sentence: what has a letter or a digit, and each span of code once."""
    plain = _LINKED.sub(r"\1", re.sub(f"{_CODE_MARK}+", "code", text))
    return sum(any(letter.isalnum() for letter in word) for word in plain.split())
