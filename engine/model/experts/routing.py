"""Which experts a layer sends each token to, and the share of each expert in the answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class ExpertRouter:
    """`weight` [experts, hidden] and perhaps `bias` [experts] score the experts of a token.

    The `top_k` best are taken. Their shares are the softmax over all experts, perhaps divided by
    its sum over the chosen experts (`renormalised`), or the softmax over the chosen experts alone
    (`softmax_of_chosen`). Shares have float32, or the type of the scores if `rounded`.
    """

    weight: Tensor
    bias: Tensor | None
    top_k: int
    softmax_of_chosen: bool = False
    renormalised: bool = False
    rounded: bool = True

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [tokens, hidden] to chosen experts and their shares, [tokens, top_k] each.

        Operation by operation as in `transformers`, so that ties fall alike.
        """
        scores = linear(x, self.weight, self.bias)
        if self.softmax_of_chosen:
            best, chosen = torch.topk(scores, self.top_k, dim=-1)
            return chosen, torch.softmax(best, dim=-1)
        probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32)
        shares, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        if self.renormalised:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return chosen, shares.to(scores.dtype) if self.rounded else shares


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss' gate: `g * sigmoid(alpha * g) * (u + 1)`, with g and u bounded by `limit`.

    Its inputs alternate: g of the first dim, u of the first dim, g of the second, and so on.
    """

    alpha: float
    limit: float

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * n] to [rows, n], in single operations."""
        gate = gate_up[..., ::2].clamp(max=self.limit)
        up = gate_up[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


@dataclass(frozen=True, slots=True)
class Experts:
    """The parts of a layer with experts beside its stacked products; None: the decoder's gate."""

    router: ExpertRouter
    gate: ClampedGate | None = None
