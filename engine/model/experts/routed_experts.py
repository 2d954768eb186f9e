"""The MLP of a layer with experts: route, sort by expert, multiply in groups, add up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.model.experts.grouped_product import GroupedProduct
from engine.model.experts.routing import ExpertRouter

Tensor = torch.Tensor
# gate_up [rows, 2 * n] and the expert [rows] of each row, to [rows, n].
GateOfExperts = Callable[[Tensor, Tensor], Tensor]


class RoutedExperts:
    """Rows [tokens, hidden] to [tokens, hidden].

    `gate_up` is [experts, 2 * intermediate, hidden], `down` [experts, hidden, intermediate], and
    `down_bias` [experts, hidden]. `gate` adds the bias of `gate_up`, if any.

    Shapes depend on the number of tokens alone. A token's answers are added up in the order of its
    choices, whatever the other tokens are.
    """

    def __init__(
        self,
        router: ExpertRouter,
        gate_up: Tensor,
        gate: GateOfExperts,
        down: Tensor,
        down_bias: Tensor | None,
        product: GroupedProduct,
    ) -> None:
        self._router = router
        self._gate_up = gate_up
        self._gate = gate
        self._down = down
        self._down_bias = down_bias
        self._product = product
        self._every = torch.arange(len(gate_up), device=gate_up.device)

    def __call__(self, x: Tensor) -> Tensor:
        """The MLP of these rows; see the class."""
        chosen, shares = self._router.route(x)
        top_k = chosen.shape[1]
        experts, order = torch.sort(chosen.flatten(), stable=True)
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        inner = self._gate(self._product(x[order // top_k], self._gate_up, ends), experts)
        answers = self._product(inner, self._down, ends)
        if self._down_bias is not None:
            answers = answers + self._down_bias[experts]
        weighted = answers * shares.flatten()[order].unsqueeze(1)
        by_token = torch.empty_like(weighted).index_copy_(0, order, weighted)
        return by_token.view(len(x), top_k, -1).sum(dim=1).to(x.dtype)
