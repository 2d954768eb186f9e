"""Measures decode and prefill of `engine.Engine` in this process; the program prints JSON.

`python -m bench.systems.in_process --model FOLDER PLAN` prints the figures of the plan, see
bench/core/engine_plan.py.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

from bench.core.engine_plan import Figures, Measurement
from bench.core.prompts import prompt_ids
from bench.core.tandem_config import BLOCK_SIZE, load_engine
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import SampledToken, Sequence, Span, collected

_CHUNK = 512
_GREEDY = SamplingParams(temperature=0.0, max_tokens=2**20, seed=0)


class EngineBench:
    """Sequences with blocks of their own in an engine's pool, and the clock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def sequences(
        self, count: int, prompt: int, new: int, name: str, first_block: int = 0
    ) -> list[Sequence]:
        """Fresh sequences with random prompts, and blocks for `new` tokens more.

        The blocks begin with `first_block`.
        """
        width = -(-(prompt + new) // BLOCK_SIZE)
        vocabulary = self._engine.description.vocabulary
        made = []
        for index in range(count):
            ids = prompt_ids(prompt, vocabulary, f"{name}/{index}")
            sequence = Sequence(f"{index}", ids, prompt, _GREEDY)
            begin = first_block + index * width
            sequence.blocks = list(range(begin, begin + width))
            made.append(sequence)
        return made

    def prefill(self, sequence: Sequence, chunk: int = _CHUNK) -> float:
        """Compute a sequence's tokens in chunks and append the next token; returns the seconds."""
        started = time.perf_counter()
        target = len(sequence.tokens)
        while sequence.computed < target:
            self._step([(sequence, min(chunk, target - sequence.computed))])
        return time.perf_counter() - started

    def decode(self, sequences: list[Sequence], steps: int) -> float:
        """Compute that many steps of one token each; returns the seconds."""
        return sum(self.step_times(sequences, steps))

    def step_times(self, sequences: list[Sequence], steps: int) -> list[float]:
        """Compute that many steps of one token each; returns the seconds of each."""
        times = [time.perf_counter()]
        for _ in range(steps):
            self._step([(sequence, 1) for sequence in sequences])
            times.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(times)]

    def decode_rate(self, batch: int, prompt: int, new: int, name: str) -> float:
        """Tokens per second of a batch whose prompts were just computed, all at once."""
        sequences = self.sequences(batch, prompt, new, name)
        for sequence in sequences:
            self.prefill(sequence)
        return batch * (new - 1) / self.decode(sequences, new - 1)

    def prefill_rate(self, tokens: int, chunk: int, name: str) -> float:
        """Prompt tokens per second of one prompt, its first token sampled."""
        [sequence] = self.sequences(1, tokens, 1, name)
        return tokens / self.prefill(sequence, chunk)

    def _step(self, work: list[tuple[Sequence, int]]) -> None:
        spans = [Span(sequence, sequence.computed, count) for sequence, count in work]
        for span, outcome in zip(spans, self._engine.forward(spans), strict=True):
            span.sequence.computed += span.count
            token = collected(span, outcome)
            if isinstance(token, SampledToken):
                span.sequence.tokens.append(token.token)
            elif token is not None:
                raise token


def pool_tokens(batch: int, prompt: int, new: int) -> int:
    """Tokens of KV that such a batch may need, whole blocks each."""
    return batch * (prompt + new + BLOCK_SIZE)


def figures(bench: EngineBench, plan: Measurement, name: str) -> Figures:
    """Run a comparison's plan after a warm-up."""
    found = Figures()
    for _ in range(2):
        bench.decode_rate(max(plan.new_tokens), plan.prompt_tokens, 8, "warm")
        bench.prefill_rate(plan.long_prompt, _CHUNK, "warm")
    for batch, new in plan.new_tokens.items():
        for repeat in plan.rounds():
            key = f"{name}/{batch}/{repeat}"
            found.decode(batch, bench.decode_rate(batch, plan.prompt_tokens, new, key))
    for repeat in plan.rounds():
        found.prefill(bench.prefill_rate(plan.long_prompt, _CHUNK, f"{name}/long/{repeat}"))
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", default="0", help="decides the prompts")
    parser.add_argument("plan", help="JSON")
    options = parser.parse_args()
    plan = Measurement.read(options.plan)
    widest = max(plan.new_tokens)
    tokens = pool_tokens(widest, plan.prompt_tokens, plan.new_tokens[widest])
    engine = load_engine(options.model, max(tokens, 2 * plan.long_prompt))
    print(figures(EngineBench(engine), plan, options.name).write())


if __name__ == "__main__":
    main()
