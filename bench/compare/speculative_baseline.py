"""Speculative decoding as `transformers` does it, on the bundled demo model, in this process.

Tandem does not speculate. A draft is useful only if its guesses are right, so random weights would
show nothing. The demo model is small, but trained.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

import models

QUESTIONS = (
    "What does the router do?",
    "What is prefill?",
    "What is a KV cache?",
    "What does decode do?",
    "How does the KV travel?",
    "What happens when a replica dies?",
    "Why are there two pools?",
    "What does the directory hold?",
)
_NEW = 96
_LOOKUP = 10
_REPEATS = 3


class NotTheSame(RuntimeError):
    """Speculation changed the tokens, which greedy decoding must not."""


@torch.inference_mode()
def lookup_ratio() -> float:
    """The speed of greedy answers with prompt lookup (Saxena, 2023) over that without.

    After a warm-up of both; raises NotTheSame.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(models.__path__[0]) / "demo"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    model.eval()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        for question in QUESTIONS
    ]
    plain_s = looked_s = 0.0
    for repeat in range(1 + _REPEATS):
        for prompt in prompts:
            plain, one_s = _answer(model, prompt)
            looked, other_s = _answer(model, prompt, prompt_lookup_num_tokens=_LOOKUP)
            if plain != looked:
                raise NotTheSame("with prompt lookup an answer has other tokens")
            if repeat:
                plain_s += one_s
                looked_s += other_s
    return plain_s / looked_s


def _answer(model: Any, prompt: Any, **options: object) -> tuple[list[int], float]:
    """Token ids of prompt and answer, and the seconds that they took."""
    began_s = time.perf_counter()
    found = model.generate(**prompt, do_sample=False, max_new_tokens=_NEW, **options)
    return found[0].tolist(), time.perf_counter() - began_s
