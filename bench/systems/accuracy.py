"""The error of logits against float64: ours, and those of `transformers` in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.core.prompts import prompt_ids
from bench.core.tandem_config import BLOCK_SIZE
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.runtime.engine import Engine
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

LENGTHS = (40, 130, 300, 600)
_DECODED = 16


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute differences from float64, and how often the best token is the same."""

    ours: float
    transformers: float
    ours_agree: float
    transformers_agree: float

    @property
    def ratio(self) -> float:
        """Our error over theirs."""
        return self.ours / self.transformers


@torch.inference_mode()
def compare(folder: Path, engine: Engine) -> Errors:
    """Logits of the last 16 tokens of a few prompts; ours are computed token by token.

    `transformers` computes each prompt in one pass, once in float64 and once in bfloat16.
    """
    prompts = [prompt_ids(n, engine.description.vocabulary, f"accuracy/{n}") for n in LENGTHS]
    reference = _whole(folder, torch.float64, prompts)
    theirs = _whole(folder, torch.bfloat16, prompts)
    ours = torch.cat([_stepwise(engine, prompt) for prompt in prompts])
    return Errors(
        ours=_error(ours, reference),
        transformers=_error(theirs, reference),
        ours_agree=_agreement(ours, reference),
        transformers_agree=_agreement(theirs, reference),
    )


def _whole(folder: Path, dtype: torch.dtype, prompts: list[list[int]]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    model.eval()
    passes = [
        model(torch.tensor([prompt]), logits_to_keep=_DECODED, use_cache=False).logits[0]
        for prompt in prompts
    ]
    return torch.cat(passes)


def _stepwise(engine: Engine, prompt: list[int]) -> torch.Tensor:
    blocks = list(range(-(-len(prompt) // BLOCK_SIZE)))
    prefilled = len(prompt) - _DECODED
    rows = []
    for length in range(prefilled, len(prompt) + 1):
        sequence = Sequence("accuracy", prompt[:length], length, SamplingParams(), blocks=blocks)
        span = Span(sequence, 0, length) if length == prefilled else Span(sequence, length - 1, 1)
        rows.append(whole(engine.runner.layers(pack([span], engine.cache)))[0].clone())
    return torch.stack(rows[1:])


def _error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    return float((logits.double() - reference).abs().mean())


def _agreement(logits: torch.Tensor, reference: torch.Tensor) -> float:
    return float((logits.argmax(-1) == reference.argmax(-1)).double().mean())
