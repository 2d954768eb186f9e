"""Training batches: conversations of one to many turns, and some plain text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from models.chat_format import ASSISTANT, BEGIN, END, SYSTEM, USER
from models.facts import Fact, normal_form
from models.keywords import Keywords
from models.phrasing import vary

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the demo model of Tandem.",
    "Answer briefly.",
    "You are a helpful assistant. Answer questions about Tandem.",
    "Be polite and short.",
    "You answer questions about serving language models.",
    "Help the user.",
    "You are a concise and friendly guide to the cluster.",
)
TURNS = (1, 2, 3, 6, 14)
TURN_WEIGHTS = (40, 25, 15, 15, 5)
OPENING_SHARE = 0.5  # batches of single questions with only the opening of the answer
OPENING_TOKENS = 12
TEXT_SHARE = 0.04
KEYWORD_SHARE = 0.5
QUESTION_WEIGHT = 0.05
FACT_WEIGHTS = {"out-of-scope": 10.0, "greeting": 2.0, "thanks": 1.5, "goodbye": 1.5}
TOKENS_PER_TURN = 62
TOKENS_PER_OPENING = 28

Piece = tuple[str, float]  # text and the weight of its tokens in the loss


@dataclass(frozen=True)
class Batch:
    """Token ids [rows, tokens], padded right, and the weight of each token as a target."""

    tokens: torch.Tensor
    weights: torch.Tensor


class Conversations:
    """An endless, seeded source of training batches; a question in `forbidden` never comes out."""

    def __init__(
        self,
        facts: Sequence[Fact],
        forbidden: Sequence[str],
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
    ) -> None:
        self._facts = list(facts)
        self._chances = [FACT_WEIGHTS.get(fact.id, 1.0) for fact in facts]
        self._forbidden = {normal_form(text) for text in forbidden}
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._deck: list[Fact] = []
        self._keywords = Keywords(facts)

    def batch(self, size_tokens: int) -> Batch:
        """About `size_tokens` tokens in rows of similar length."""
        rng = self._rng
        if rng.random() < OPENING_SHARE:
            rows = [self._conversation(1) for _ in range(size_tokens // TOKENS_PER_OPENING)]
            return self._padded(rows, answer_tokens=OPENING_TOKENS)
        if rng.random() < TEXT_SHARE:
            rows = [self._text() for _ in range(size_tokens // (2 * TOKENS_PER_TURN))]
        else:
            turns = rng.choices(TURNS, TURN_WEIGHTS)[0]
            rows = [
                self._conversation(turns) for _ in range(size_tokens // (turns * TOKENS_PER_TURN))
            ]
        return self._padded(rows)

    def question(self, fact: Fact) -> str:
        """A varied question for `fact` that is not forbidden."""
        while True:
            by_keywords = not fact.small_talk and self._rng.random() < KEYWORD_SHARE
            text = (
                self._keywords.question(fact, self._rng) if by_keywords else vary(fact, self._rng)
            )
            if normal_form(text) not in self._forbidden:
                return text

    def _draw(self) -> Fact:
        """The next fact of a shuffled deck, so that all facts come equally often."""
        if not self._deck:
            copies = [
                [fact] * round(2 * chance)
                for fact, chance in zip(self._facts, self._chances, strict=True)
            ]
            self._deck = [fact for copy in copies for fact in copy]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    def _conversation(self, turns: int) -> list[Piece]:
        row: list[Piece] = [(BEGIN, 0.0)]
        if self._rng.random() < 0.3:
            row.append((SYSTEM + self._rng.choice(SYSTEM_PROMPTS) + END, 0.0))
        for _ in range(turns):
            fact = self._draw()
            row += [(USER, 0.0), (self.question(fact) + END, QUESTION_WEIGHT), (ASSISTANT, 0.0)]
            row.append((fact.answer + END, 1.0))
        return row

    def _text(self) -> list[Piece]:
        answers = [self._draw().answer for _ in range(3)]
        opening = BEGIN if self._rng.random() < 0.5 else ""
        return [(opening, 0.0), (" ".join(answers) + END, 0.5)]

    def _padded(self, rows: list[list[Piece]], answer_tokens: int | None = None) -> Batch:
        pieces = [text for row in rows for text, _ in row]
        ids = iter(self._tokenizer(pieces, add_special_tokens=False)["input_ids"])
        tokens, weights = [], []
        for row in rows:
            parts = [(next(ids), weight) for _, weight in row]
            parts[-1] = (parts[-1][0][:answer_tokens], parts[-1][1])
            tokens.append(
                torch.tensor([token for part, _ in parts for token in part], dtype=torch.long)
            )
            weights.append(torch.tensor([weight for part, weight in parts for _ in part]))
        pad = self._tokenizer.pad_token_id
        pack = torch.nn.utils.rnn.pad_sequence
        return Batch(pack(tokens, True, pad), pack(weights, True, 0.0))
