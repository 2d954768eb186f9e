"""Many phrasings from one: frames, synonyms, politeness, left-out words, slips of the finger.

The model is far too small to know English, so its robustness to wording has to come from here.
"""

from __future__ import annotations

import random
import re

import yaml

from models.facts import TEXT_FOLDER, Fact

_WORDING = yaml.safe_load((TEXT_FOLDER / "wording.yaml").read_text("utf-8"))
LIGHT_WORDS = frozenset(_WORDING["light_words"].split())
QUESTION_WORDS: tuple[str, ...] = tuple(_WORDING["question_words"])
NEUTRAL_WORDS: tuple[str, ...] = tuple(_WORDING["neutral_words"])
_REFRAMES = tuple((re.compile(entry["pattern"]), entry["frames"]) for entry in _WORDING["reframes"])
_SYNONYMS = {
    word: tuple(other for other in group.split("|") if other != word)
    for group in _WORDING["synonyms"]
    for word in group.split("|")
    if " " not in word
}


def vary(fact: Fact, rng: random.Random) -> str:
    """A random phrasing of a question for `fact`."""
    if fact.about and rng.random() < 0.3:
        text = rng.choice(_WORDING["topic_frames"]).format(rng.choice(fact.about))
    else:
        text = rng.choice(fact.ask)
    if rng.random() < 0.35:
        text = _reframe(text, rng)
    words = text.split()
    words = [_synonym(word, rng) if rng.random() < 0.15 else word for word in words]
    if len(words) > 3 and rng.random() < 0.5:
        words = _thin_out(words, rng)
    if len(words) > 3 and rng.random() < 0.12:
        words = _reorder(words, rng)
    return dress(" ".join(words), rng)


def _reframe(text: str, rng: random.Random) -> str:
    for pattern, frames in _REFRAMES:
        if match := pattern.match(text):
            return str(rng.choice(frames).format(match.group(1)))
    return text


def _synonym(word: str, rng: random.Random) -> str:
    bare = word.rstrip("?.,!")
    others = _SYNONYMS.get(bare, ())
    return rng.choice(others) + word[len(bare) :] if others else word


def _thin_out(words: list[str], rng: random.Random) -> list[str]:
    """Leave out light words often and, now and then, one word of weight."""
    light_rate, drops_one = rng.choice((0.2, 0.4, 0.7)), rng.random() < 0.2
    kept = [word for word in words if bare(word) not in LIGHT_WORDS or rng.random() > light_rate]
    if drops_one and len(kept) > 3:
        kept.pop(rng.randrange(len(kept)))
    return kept or words


def _reorder(words: list[str], rng: random.Random) -> list[str]:
    """Turn the sentence around at some place, or swap two neighbours."""
    at = rng.randrange(1, len(words))
    if rng.random() < 0.5:
        return words[at:] + words[:at]
    return [*words[: at - 1], words[at], words[at - 1], *words[at + 1 :]]


def bare(word: str) -> str:
    """`word` in lower case without punctuation around it."""
    return re.sub(r"^\W+|\W+$", "", word.lower())


def dress(text: str, rng: random.Random) -> str:
    """Openings, closings, case, punctuation and typing errors."""
    if rng.random() < 0.3:
        opening = rng.choice(_WORDING["openings"])
        text = opening + (text[:1].lower() + text[1:] if opening.endswith((", ", " ")) else text)
    if rng.random() < 0.15:
        text = text.rstrip("?.!") + rng.choice(_WORDING["closings"]) + rng.choice(("", "?"))
    if rng.random() < 0.35:
        text = text.lower()
    if rng.random() < 0.4:
        text = text.rstrip("?.!")
    elif rng.random() < 0.1:
        text = text.rstrip("?.!") + rng.choice(("??", "!", " ?", "...", ":"))
    if len(text) > 8 and rng.random() < 0.1:
        at = rng.randrange(1, len(text) - 2)
        middle = rng.choice((text[at + 1] + text[at], text[at], text[at] * 2 + text[at + 1]))
        text = text[:at] + middle + text[at + 2 :]
    return text
