"""Prompts of an exact number of tokens, no two alike, the same for every system."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.core.model_135m import FIRST_WORD


def prompt_ids(tokens: int, vocabulary: int, name: str) -> list[int]:
    """Random token ids that depend on `name` alone; none is a special token."""
    chosen = random.Random(name)
    return [chosen.randrange(FIRST_WORD, vocabulary) for _ in range(tokens)]


def as_text(ids: Sequence[int]) -> str:
    """The text that the model's tokenizer reads as exactly these ids."""
    return " ".join(f"w{token}" for token in ids)


def count_tokens(text: str) -> int:
    """The number of tokens of this text, without special ones."""
    return len(text.split())
