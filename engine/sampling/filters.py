"""The tokens that top-k, top-p and min-p keep, in that order, as a floor under the scores.

Each works on the distribution that temperature gives:

- top-k keeps the k most likely tokens;
- top-p keeps the fewest most likely tokens whose share of the kept probability reaches p
  (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020);
- min-p keeps tokens at least min-p times as likely as the most likely token
  (Nguyen et al., "Turning Up the Heat", 2024).

At least one token always stays. Tokens exactly as likely as the last kept token are kept as well,
because the order of equals after a sort depends on the device and the batch.
"""

from __future__ import annotations

import torch

from engine.types.sampling_params import SamplingParams

# Tuned: top-p seldom needs more of the best scores; all are sorted only where it does.
_HEAD = 1024


def keep_likely(
    scores: torch.Tensor, temperature: torch.Tensor, params: list[SamplingParams]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The kept scores of each row, and their token ids.

    `scores` is float32 [rows, vocabulary], `temperature` float64 [rows, 1]; each
    row has one of `params`.
    Returns scores [rows, kept], in vocabulary order, filled up with minus infinity, and ids of the
    same shape; or, where much is kept, scores as wide as the vocabulary and None.
    """
    mask = scores >= _floor(scores, temperature, params)
    counts = mask.sum(dim=-1)
    width = int(counts.max())
    if width == 0 or width * 4 > scores.shape[-1]:
        return scores.masked_fill(~mask, -torch.inf), None
    rows, tokens = mask.nonzero(as_tuple=True)
    columns = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    kept = scores.new_full((len(params), width), -torch.inf)
    kept[rows, columns] = scores[rows, tokens]
    ids = tokens.new_zeros((len(params), width))
    ids[rows, columns] = tokens
    return kept, ids


def _floor(
    scores: torch.Tensor, temperature: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    """The lowest score that stays in each row, float32 [rows, 1]."""
    vocabulary = scores.shape[-1]
    min_p = _column([p.min_p for p in params], scores.device)
    floor = scores.amax(dim=-1, keepdim=True) + temperature * min_p.log()
    by_k = [row for row, p in enumerate(params) if 0 < p.top_k < vocabulary]
    by_p = [r for r, p in enumerate(params) if not 0 < p.top_k < vocabulary and p.top_p < 1.0]
    for rows, lowest in ((by_k, _lowest_of_top_k), (by_p, _lowest_of_top_p)):
        if rows:
            found = lowest(scores[rows], temperature[rows], [params[row] for row in rows])
            floor[rows] = torch.maximum(floor[rows], found.double())
    return floor.float()


def _lowest_of_top_k(
    scores: torch.Tensor, temperature: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    """The last score that top-k, then top-p keep of each row, [rows, 1]."""
    ranked = scores.topk(max(p.top_k for p in params), dim=-1).values
    kept = torch.tensor([p.top_k for p in params], device=scores.device).unsqueeze(1)
    if any(p.top_p < 1.0 for p in params):
        weights = _weights(ranked, ranked[:, :1], temperature)
        weights.masked_fill_(torch.arange(ranked.shape[-1], device=scores.device) >= kept, 0.0)
        top_p = _column([p.top_p for p in params], scores.device)
        fewest = _fewest(weights, top_p * weights.sum(dim=-1, keepdim=True))
        kept = torch.where(top_p < 1.0, torch.minimum(kept, fewest), kept)
    return ranked.gather(1, kept - 1)


def _lowest_of_top_p(
    scores: torch.Tensor, temperature: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    """The last score that top-p keeps of each row, [rows, 1]."""
    head = min(_HEAD, scores.shape[-1])
    ranked = scores.topk(head, dim=-1).values
    total = _weights(scores, ranked[:, :1], temperature).sum(dim=-1, keepdim=True)
    target = _column([p.top_p for p in params], scores.device) * total
    weights = _weights(ranked, ranked[:, :1], temperature)
    fewest = _fewest(weights, target)
    lowest = ranked.gather(1, fewest - 1)
    unmet = (weights.sum(dim=-1) < target.squeeze(1)).nonzero().squeeze(1)
    if head < scores.shape[-1] and len(unmet):
        ranked = scores[unmet].sort(dim=-1, descending=True).values
        weights = _weights(ranked, ranked[:, :1], temperature[unmet])
        lowest[unmet] = ranked.gather(1, _fewest(weights, target[unmet]) - 1)
    return lowest


def _weights(scores: torch.Tensor, best: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Probabilities but for their common divisor, float64; the best token weighs 1."""
    return scores.double().sub_(best).div_(temperature).exp_()


def _fewest(weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The number of leading weights that reach the target, at least 1; int64 [rows, 1]."""
    reached = weights.cumsum(dim=-1)
    return ((reached < target).sum(dim=-1, keepdim=True) + 1).clamp_(max=weights.shape[-1])


def _column(values: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)
