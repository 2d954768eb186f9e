"""From the model's logits to the next token of every sequence in a batch.

Per row, in this order: repetition penalty, presence and frequency penalties, logit bias; then,
where temperature is 0, the best token; else temperature, and of the distribution that it gives

- top-k keeps the k most likely tokens;
- top-p keeps the fewest most likely of those whose share of their probability reaches p
  (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020);
- min-p keeps those at least min-p times as likely as the most likely one
  (Nguyen et al., "Turning Up the Heat", 2024).

At least one token always stays. Tokens exactly as likely as the last one kept are kept as well,
because the order of equals after a sort depends on the device and the batch.

The token is then found by inverse CDF with one number that depends on seed, choice and absolute
position alone (`engine/noise.py`), so a request gets the same token in any batch, on any replica.
"""

from __future__ import annotations

import torch

from engine.errors import Internal
from engine.noise import uniform
from engine.penalties import edit_logits, edits_logits
from engine.sequence import SampledToken, Sequence

_BAD = -1  # on the device only: in place of the token of a row without a distribution


@torch.no_grad()
def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """Choose the next token of each sequence.

    `logits` is [rows, vocabulary] of any float dtype and stays as it is; row i belongs to
    sequences[i], and its token gets the absolute position len(tokens). Log-probabilities are of
    the model's own logits, in float32, for rows that ask. Raises Internal where a row's best
    logit is NaN or infinite.
    """
    if logits.dim() != 2 or logits.shape[0] != len(sequences):
        raise Internal(f"logits of shape {tuple(logits.shape)} for {len(sequences)} sequences")
    plain = [row for row, sequence in enumerate(sequences) if _is_plain(sequence)]
    if len(plain) == len(sequences):
        tokens = _best(logits).tolist()
    else:
        rest = [row for row, sequence in enumerate(sequences) if not _is_plain(sequence)]
        # Indexing copies, so the edits leave the caller's logits alone.
        scores = logits[rest].float()
        edit_logits(scores, [sequences[row] for row in rest])
        parts = [_choose(scores, [sequences[row] for row in rest])]
        if plain:
            parts.append(_best(logits[plain]))
        by_row = dict(zip(rest + plain, torch.cat(parts).tolist(), strict=True))
        tokens = [by_row[row] for row in range(len(sequences))]
    for token, sequence in zip(tokens, sequences, strict=True):
        if token == _BAD:
            raise Internal(f"the model's logits for {sequence.owner} are NaN or infinite")
    return _with_logprobs(logits, sequences, tokens)


def _is_plain(sequence: Sequence) -> bool:
    return sequence.sampling.greedy and not edits_logits(sequence.sampling)


def _choose(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """Best token of greedy rows, a drawn one of the others; `scores` is edited, float32."""
    drawn = [row for row, sequence in enumerate(sequences) if not sequence.sampling.greedy]
    if len(drawn) == len(sequences):
        return _draw(scores, sequences)
    tokens = _best(scores)
    if drawn:
        tokens[drawn] = _draw(scores[drawn], [sequences[row] for row in drawn])
    return tokens


def _best(scores: torch.Tensor) -> torch.Tensor:
    """The first best token of each row, int64 [rows]."""
    tokens = scores.argmax(dim=-1)
    best = scores.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return torch.where(best.isfinite(), tokens, _BAD)


def _draw(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """One token of each row by inverse CDF, int64 [rows]; `scores` is edited, float32."""
    asks = torch.tensor(
        [(s.sampling.temperature, s.sampling.min_p, _uniform(s)) for s in sequences],
        dtype=torch.float64,
        device=scores.device,
    )
    temperature, min_p, noise = (column.unsqueeze(1) for column in asks.unbind(1))
    best = scores.amax(dim=-1, keepdim=True)
    # A softmax in float64 but for its division; the best token weighs 1.
    weights = scores.double().sub_(best).div_(temperature).exp_()
    floor = _floor(scores, temperature, sequences)
    if floor is not None:
        weights.masked_fill_(scores < floor, 0.0)
    if any(sequence.sampling.min_p > 0.0 for sequence in sequences):
        weights.masked_fill_(weights < min_p, 0.0)
    # In vocabulary order, not sorted by weight: rounding of 1e-7 in two close logits would swap
    # their places in a sorted order and so the token; here it moves the edges by as little.
    edges = weights.cumsum(dim=-1)
    total = edges[:, -1:]
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(edges, target, right=True)
    return torch.where(total.isfinite(), tokens, _BAD).squeeze(1)


def _uniform(sequence: Sequence) -> float:
    if sequence.sampling.seed is None:
        raise Internal(f"{sequence.owner} came to the sampler without a seed")
    return uniform(sequence.sampling.seed, sequence.choice, len(sequence.tokens))


def _floor(
    scores: torch.Tensor, temperature: torch.Tensor, sequences: list[Sequence]
) -> torch.Tensor | None:
    """The lowest score that top-k and top-p keep, [rows, 1]; None where no row asks."""
    vocabulary = scores.shape[-1]
    by_k = [r for r, s in enumerate(sequences) if 0 < s.sampling.top_k < vocabulary]
    by_p = [r for r, s in enumerate(sequences) if s.sampling.top_p < 1.0 and r not in by_k]
    if not by_k and not by_p:
        return None
    floor = torch.full_like(temperature, -torch.inf, dtype=scores.dtype)
    if by_k:
        ks = [sequences[row].sampling.top_k for row in by_k]
        ranked = scores[by_k].topk(max(ks), dim=-1).values
        floor[by_k] = _lowest_kept(ranked, ks, temperature[by_k], [sequences[r] for r in by_k])
    if by_p:
        ranked = scores[by_p].sort(dim=-1, descending=True).values
        ks = [vocabulary] * len(by_p)
        floor[by_p] = _lowest_kept(ranked, ks, temperature[by_p], [sequences[r] for r in by_p])
    return floor


def _lowest_kept(
    ranked: torch.Tensor, ks: list[int], temperature: torch.Tensor, sequences: list[Sequence]
) -> torch.Tensor:
    """The last score that top-k, then top-p keep of each row of scores ranked best first."""
    kept = torch.tensor(ks, device=ranked.device).unsqueeze(1)
    shares = [sequence.sampling.top_p for sequence in sequences]
    if any(share < 1.0 for share in shares):
        share = torch.tensor(shares, dtype=torch.float64, device=ranked.device).unsqueeze(1)
        weights = ranked.double().sub_(ranked[:, :1]).div_(temperature).exp_()
        places = torch.arange(ranked.shape[-1], device=ranked.device)
        weights.masked_fill_(places >= kept, 0.0)
        before = weights.cumsum(dim=-1)
        total = before[:, -1:].clone()
        before = before.roll(1, dims=-1)
        before[:, 0] = 0.0
        fewest = (before < share * total).sum(dim=-1, keepdim=True).clamp_(min=1)
        kept = torch.where(share < 1.0, torch.minimum(kept, fewest), kept)
    return ranked.gather(1, kept - 1)


def _with_logprobs(
    logits: torch.Tensor, sequences: list[Sequence], tokens: list[int]
) -> list[SampledToken]:
    sampled = [SampledToken(token) for token in tokens]
    asks = {r: k for r, s in enumerate(sequences) if (k := s.sampling.logprobs) is not None}
    if asks:
        rows = list(asks)
        table = logits[rows].float().log_softmax(dim=-1)
        drawn = torch.tensor([tokens[row] for row in rows], device=logits.device)
        chosen = table.gather(1, drawn.unsqueeze(1)).squeeze(1).tolist()
        best = table.topk(min(max(asks.values()), table.shape[-1]), dim=-1)
        values, ids = best.values.tolist(), best.indices.tolist()
        for place, (row, k) in enumerate(asks.items()):
            top = tuple(zip(ids[place][:k], values[place][:k], strict=True))
            sampled[row] = SampledToken(tokens[row], chosen[place], top)
    return sampled
