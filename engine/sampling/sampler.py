"""From the model's logits to the next token of every sequence in a batch.

Each row goes through these steps:

1. repetition, presence and frequency penalties, logit bias (`engine/sampling/penalties.py`);
2. minus infinity for the tokens that the grammar does not allow (`engine/grammar/masks.py`);
3. where temperature is 0, the best token;
4. else temperature, top-k, top-p and min-p (`engine/sampling/filters.py`), and the kept token at a
   random number (`engine/sampling/counter_rng.py`).

The random number depends on seed, choice and absolute position alone. So a request gets the same
token in any batch, on any replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from engine.errors import Internal, TandemError
from engine.grammar.masks import TokenMasks
from engine.sampling.counter_rng import uniform
from engine.sampling.drawn_tokens import NO_TOKEN, DrawnLogprobs, DrawnTokens
from engine.sampling.filters import keep_likely
from engine.sampling.penalties import edit_logits
from engine.types.sequence import SampledToken, Sequence

# Tuned: on a CPU the system takes larger temporaries back and faults them in again at every step,
# which costs more than the arithmetic.
_CPU_NUMBERS = 2**20

# `draw`, or that of a device (engine/sampling/device_sampler.py).
Draw = Callable[[torch.Tensor, list[Sequence], list[int], TokenMasks | None], DrawnTokens]


def sample(
    logits: torch.Tensor, sequences: list[Sequence], masks: TokenMasks | None = None
) -> list[SampledToken | TandemError]:
    """Choose the next token of each sequence, behind its tokens so far; see `draw`."""
    return draw(logits, sequences, [len(one.tokens) for one in sequences], masks).read()


@torch.no_grad()
def draw(
    logits: torch.Tensor,
    sequences: list[Sequence],
    lengths: list[int],
    masks: TokenMasks | None = None,
) -> DrawnTokens:
    """Choose the next token of each sequence, on the device.

    `logits` is [rows, vocabulary] of any float dtype and stays as it is; row i belongs to
    sequences[i], and its token gets the absolute position lengths[i]. Log-probabilities are of
    the model's own logits, in float32, for rows that request them. A row whose best logit is NaN or
    infinite gets an Internal instead, so that it fails alone. `masks` has those of the sequences
    that follow a grammar. A sequence with penalties has all of its tokens.
    """
    if logits.dim() != 2 or logits.shape[0] != len(sequences):
        raise Internal(f"logits of shape {tuple(logits.shape)} for {len(sequences)} sequences")
    if not sequences:
        return DrawnTokens(torch.empty(0, dtype=torch.long), None, {})
    order: list[int] = []
    parts: list[torch.Tensor] = []
    for rows in _groups(logits, sequences, masks):
        members = [sequences[row] for row in rows]
        order += rows
        scores = logits if len(rows) == len(sequences) else logits[rows]
        parts.append(_choose(scores, members, [lengths[row] for row in rows], masks))
    tokens = torch.cat(parts)
    if len(parts) > 1 and order != sorted(order):
        tokens = torch.empty_like(tokens).index_copy_(0, _there(order, tokens), tokens)
    faults = {} if masks is None else masks.faults
    failed = {row: faults[one.owner] for row, one in enumerate(sequences) if one.owner in faults}
    return DrawnTokens(tokens, _logprobs(logits, sequences, tokens), failed)


def _groups(
    logits: torch.Tensor, sequences: list[Sequence], masks: TokenMasks | None
) -> list[list[int]]:
    """Rows that are sampled alike, so that no row pays for another's request."""
    kinds: defaultdict[tuple[bool, bool, bool, bool], list[int]] = defaultdict(list)
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        drawn = not sampling.greedy
        guided = masks is not None and sequence.owner in masks.rows
        kinds[drawn, drawn and sampling.filters_tokens, sampling.edits_logits, guided].append(row)
    groups = []
    for (drawn, _, edited, guided), rows in kinds.items():
        step = len(rows)
        if logits.device.type == "cpu" and (drawn or edited or guided):
            step = max(1, _CPU_NUMBERS // logits.shape[1])
        groups += [rows[start : start + step] for start in range(0, len(rows), step)]
    return groups


def _choose(
    scores: torch.Tensor, sequences: list[Sequence], lengths: list[int], masks: TokenMasks | None
) -> torch.Tensor:
    """The tokens of one group's rows, int64 [rows]."""
    sampling = sequences[0].sampling
    guided = masks is not None and sequences[0].owner in masks.rows
    own = sampling.edits_logits or (guided and not sampling.greedy)
    if own:
        if any(len(one.tokens) < length for one, length in zip(sequences, lengths, strict=True)):
            raise Internal("penalties need all tokens of a sequence")
        scores = scores.to(torch.float32, copy=True)
        edit_logits(scores, sequences)
    if masks is not None and guided:
        rows = masks.banned[[masks.rows[sequence.owner] for sequence in sequences]]
        banned = torch.from_numpy(rows).to(scores.device)
        fill = scores.masked_fill_ if own else scores.masked_fill
        scores = fill(banned, -torch.inf)
    if not sampling.greedy:
        return _draw(scores.float(), sequences, lengths, filtered=sampling.filters_tokens)
    # Not argmax, which is six times slower in bfloat16 on a CPU.
    best, tokens = scores.max(dim=-1)
    return torch.where(best.isfinite(), tokens, NO_TOKEN)


def _draw(
    scores: torch.Tensor, sequences: list[Sequence], lengths: list[int], *, filtered: bool
) -> torch.Tensor:
    """A token of each row by inverse CDF, int64 [rows]; `scores` is float32."""
    params = [sequence.sampling for sequence in sequences]
    drawn = zip(sequences, lengths, strict=True)
    numbers = [(one.sampling.temperature, _uniform(one, length)) for one, length in drawn]
    table = _there(numbers, scores, torch.float64)
    temperature, noise = (column.unsqueeze(1) for column in table.unbind(1))
    best = scores.amax(dim=-1, keepdim=True)
    ids = None
    if filtered:
        scores, ids = keep_likely(scores, temperature, params)
    # A softmax in float64 but for its division, and its running sum. In vocabulary order, not
    # sorted by weight: rounding of 1e-7 in two close logits would swap their order in a sorted
    # order and so the token; here it moves the edges by as little.
    edges = scores.double().sub_(best).div_(temperature).exp_().cumsum_(dim=-1)
    total = edges[:, -1:]
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    columns = torch.searchsorted(edges, target, right=True)
    # Only a row without a distribution has no such edge.
    columns.clamp_(max=edges.shape[-1] - 1)
    tokens = columns if ids is None else ids.gather(1, columns)
    return torch.where(total.isfinite() & (total > 0), tokens, NO_TOKEN).squeeze(1)


def _uniform(sequence: Sequence, position: int) -> float:
    if sequence.sampling.seed is None:
        raise Internal(f"{sequence.owner} came to the sampler without a seed")
    return uniform(sequence.sampling.seed, sequence.choice, position)


def _logprobs(
    logits: torch.Tensor, sequences: list[Sequence], tokens: torch.Tensor
) -> DrawnLogprobs | None:
    requested = {r: k for r, s in enumerate(sequences) if (k := s.sampling.logprobs) is not None}
    if not requested:
        return None
    rows = _there(list(requested), logits)
    table = logits[rows].float().log_softmax(dim=-1)
    # A row without a distribution has no token to look up; its value is not used.
    chosen = table.gather(1, tokens[rows].clamp(min=0).unsqueeze(1)).squeeze(1)
    best = table.topk(min(max(requested.values()), table.shape[-1]), dim=-1)
    return DrawnLogprobs(requested, chosen, best.values, best.indices)


def _there(
    values: list[int] | list[tuple[float, float]],
    like: torch.Tensor,
    dtype: torch.dtype = torch.long,
) -> torch.Tensor:
    """Values on the device of another tensor, without a wait for the kernels launched so far."""
    if not like.is_cuda:
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(like.device, non_blocking=True)
