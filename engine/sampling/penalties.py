"""A request's changes to the model's logits before a token is chosen."""

from __future__ import annotations

from array import array

import torch

from engine.types.sequence import Sequence


def edit_logits(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """Apply repetition penalty, then presence and frequency penalties, then biases, in place.

    `scores` is float32 [rows, vocabulary]; row i belongs to sequences[i]. Rows without
    such a request are not touched.
    """
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        if sampling.repetition_penalty != 1.0:
            _repetition(scores[row], sequence.tokens, sampling.repetition_penalty)
        if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
            output = sequence.tokens[sequence.prompt_tokens :]
            _presence(scores[row], output, sampling.presence_penalty, sampling.frequency_penalty)
    _biases(scores, sequences)


def _repetition(row: torch.Tensor, tokens: list[int], penalty: float) -> None:
    """Divide positive, multiply negative logits of tokens seen (Keskar et al., CTRL, 2019)."""
    if tokens:
        seen = _indices(tokens, row.device)
        scores = row[seen]
        row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def _presence(row: torch.Tensor, output: list[int], presence: float, frequency: float) -> None:
    """Subtract `presence` once and `frequency` per occurrence, as OpenAI's API defines them."""
    if output:
        seen, counts = torch.unique(_indices(output, row.device), return_counts=True)
        row[seen] -= presence + frequency * counts


def _biases(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    entries = [
        (row, token, bias)
        for row, sequence in enumerate(sequences)
        for token, bias in sequence.sampling.logit_bias.items()
    ]
    if entries:
        rows, tokens, biases = zip(*entries, strict=True)
        where = torch.tensor((rows, tokens), device=scores.device)
        scores[where[0], where[1]] += torch.tensor(biases, device=scores.device)


def _indices(tokens: list[int], device: torch.device) -> torch.Tensor:
    # An array is read several times faster than a list.
    return torch.frombuffer(array("q", tokens), dtype=torch.int64).to(device)
