"""Measures decode and prefill of llama.cpp's C API, in its own environment; prints JSON.

`python -m bench.systems.llama_cpp --model FILE PLAN`, with nothing needed but `llama_cpp` and
NumPy.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.core.engine_plan import Figures, Measurement
from bench.core.prompts import prompt_ids

_MOST_BATCH = 2048
_MARGIN = 16


class Llama:
    """A model, and one context for a number of sequences of the same length."""

    def __init__(self, file: Path) -> None:
        llama_cpp.llama_backend_init()
        defaults = llama_cpp.llama_model_default_params()
        self._model: Any = llama_cpp.llama_model_load_from_file(str(file).encode(), defaults)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {file}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._context: Any = None
        self._batch: Any = llama_cpp.llama_batch_init(_MOST_BATCH, 0, 1)

    def open(self, sequences: int, tokens: int) -> None:
        """Open a new context for `tokens` in each of `sequences`; all cores compute."""
        if self._context:
            llama_cpp.llama_free(self._context)
        options: Any = llama_cpp.llama_context_default_params()
        options.n_ctx = sequences * (tokens + _MARGIN)
        options.n_seq_max = sequences
        options.n_batch = _MOST_BATCH
        options.n_threads = options.n_threads_batch = os.cpu_count()
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise SystemExit(f"llama.cpp has no room for {sequences} sequences of {tokens}")

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def prefill(self, sequence: int, ids: list[int]) -> int:
        """Compute a prompt; returns the best next token."""
        last = len(ids) - 1
        rows = [(token, position, sequence, position == last) for position, token in enumerate(ids)]
        return int(self._compute(rows, 1)[0])

    def decode(self, tokens: list[int], position: int) -> list[int]:
        """Compute a token of each sequence at one position; returns the best next tokens."""
        rows = [(token, position, sequence, True) for sequence, token in enumerate(tokens)]
        return [int(token) for token in self._compute(rows, len(rows))]

    def _compute(self, rows: list[tuple[int, int, int, bool]], outputs: int) -> Any:
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, sampled) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = sampled
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise SystemExit("llama_decode failed")
        first = llama_cpp.llama_get_logits(self._context)
        address = ctypes.cast(first, ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, shape=(outputs, self.vocabulary))
        return logits.argmax(axis=1)


def decode_rate(llama: Llama, batch: int, prompt: int, new: int, name: str) -> float:
    """Tokens per second of a batch whose prompts were just computed."""
    llama.clear()
    prompts = [prompt_ids(prompt, llama.vocabulary, f"{name}/{index}") for index in range(batch)]
    tokens = [llama.prefill(index, ids) for index, ids in enumerate(prompts)]
    started = time.perf_counter()
    for position in range(prompt, prompt + new - 1):
        tokens = llama.decode(tokens, position)
    return batch * (new - 1) / (time.perf_counter() - started)


def prefill_rate(llama: Llama, tokens: int, name: str) -> float:
    """Prompt tokens per second of one prompt."""
    llama.clear()
    ids = prompt_ids(tokens, llama.vocabulary, f"{name}/0")
    started = time.perf_counter()
    llama.prefill(0, ids)
    return tokens / (time.perf_counter() - started)


def figures(llama: Llama, plan: Measurement, name: str) -> Figures:
    """Run the plan, each part after a warm-up."""
    found = Figures()
    for batch, new in plan.new_tokens.items():
        llama.open(batch, plan.prompt_tokens + new)
        decode_rate(llama, batch, plan.prompt_tokens, 16, "warm")
        for repeat in plan.rounds():
            key = f"{name}/{batch}/{repeat}"
            found.decode(batch, decode_rate(llama, batch, plan.prompt_tokens, new, key))
    llama.open(1, plan.long_prompt)
    prefill_rate(llama, plan.long_prompt, "warm")
    for repeat in plan.rounds():
        found.prefill(prefill_rate(llama, plan.long_prompt, f"{name}/long/{repeat}"))
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", default="0", help="decides the prompts")
    parser.add_argument("plan", help="JSON")
    options = parser.parse_args()
    print(figures(Llama(options.model), Measurement.read(options.plan), options.name).write())


if __name__ == "__main__":
    main()
