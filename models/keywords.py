"""Questions made of a fact's telling words: the model learns to go by them, not by the form."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from models.facts import Fact
from models.phrasing import LIGHT_WORDS, NEUTRAL_WORDS, QUESTION_WORDS, bare, dress

ANSWER_SHARE = 0.3
PAIR_SHARE = 0.4


class Keywords:
    """Weighs words by how few facts use them (inverse document frequency)."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        texts = [" ".join((*fact.ask, *fact.about, fact.answer)) for fact in facts]
        uses = Counter(word for text in texts for word in {bare(word) for word in text.split()})
        self._weights = {word: math.log(len(facts) / count) for word, count in uses.items()}
        self._light = sorted(LIGHT_WORDS)

    def question(self, fact: Fact, rng: random.Random) -> str:
        """Two to seven telling words of `fact`, mostly in order, among words that say little."""
        words = self._pick(self._source(fact, rng), rng.randint(2, 7), rng)
        if rng.random() < 0.25:
            rng.shuffle(words)
        for _ in range(rng.randint(0, 5)):
            filler = rng.choice(self._light if rng.random() < 0.6 else NEUTRAL_WORDS)
            words.insert(rng.randint(0, len(words)), filler)
        if rng.random() < 0.6:
            words.insert(0, rng.choice(QUESTION_WORDS))
        text = " ".join(words) + "?"
        return dress(text[:1].upper() + text[1:], rng)

    def _source(self, fact: Fact, rng: random.Random) -> list[str]:
        if rng.random() < ANSWER_SHARE:
            return fact.answer.split()
        texts = [*fact.ask, *fact.about]
        chosen = rng.sample(texts, min(2 if rng.random() < PAIR_SHARE else 1, len(texts)))
        return " ".join(chosen).split()

    def _pick(self, words: list[str], count: int, rng: random.Random) -> list[str]:
        """A weighted sample without replacement, in the order of the text."""
        telling = [place for place, word in enumerate(words) if bare(word) not in LIGHT_WORDS]
        ranks = {place: rng.random() ** (1 / self._weight(words[place])) for place in telling}
        chosen = sorted(sorted(telling, key=lambda place: ranks[place])[-count:])
        return [words[place].strip("?.,:;") for place in chosen] or words

    def _weight(self, word: str) -> float:
        return max(0.1, self._weights.get(bare(word), 1.0) ** 2)
