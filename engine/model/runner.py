"""The interface that computes logits from packed tokens, and its two implementations.

`TransformersRunner` runs the model's own module with paged attention; it serves every model.
`CompactRunner` (engine/model/fused_forward.py) is Tandem's forward for the main families.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.kv.cache import KvFormat
from engine.model import attention_hf as attention
from engine.model.cuda_graphs import DecodeReplays
from engine.model.module_head import ModuleHead
from engine.model.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """A batch behind its last layer, with `logits` [len(batch.last), vocabulary].

    `logits_of` gives the logits of other tokens: indices [rows] to [rows, vocabulary].
    """

    logits: torch.Tensor
    logits_of: Callable[[torch.Tensor], torch.Tensor]


class Runner(Protocol):
    """A model that is ready to compute; its KV has the order `kv_format`.

    `replays` are recordings of its decode steps, or None.
    """

    kv_format: KvFormat
    replays: DecodeReplays | None

    @property
    def name(self) -> str:
        """The implementation's name, for the log."""
        ...

    def layers(self, batch: PackedBatch) -> Generator[int, None, ForwardOutput]:
        """Store the batch's keys and values, with pauses behind layers where possible.

        A pause yields how many layers have stored. All layers have before the logits are computed.
        """
        ...


class TransformersRunner:
    """The model's own module, with the registered attention."""

    name = "transformers"
    kv_format: KvFormat = "plain"
    replays: DecodeReplays | None = None

    def __init__(self, model: Any) -> None:
        attention.register(attention.NAME, attention.paged_attention)
        model.set_attn_implementation(attention.NAME)
        self._model = model
        self._head = ModuleHead(model)

    def layers(self, batch: PackedBatch) -> Generator[int, None, ForwardOutput]:
        """See Runner; a module runs in one go."""
        yield from ()
        model, last = self._model, batch.last
        logits = run_module(model, batch.tokens, batch.positions, last, tandem_batch=batch)
        return ForwardOutput(logits, self._head.behind_last_call())


def whole(run: Generator[int, None, ForwardOutput]) -> torch.Tensor:
    """The logits of a pass, without pauses."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            computed: ForwardOutput = end.value
            return computed.logits


def run_module(
    model: Any,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """One pass of a module: logits [len(last), vocabulary]; an empty `last` computes none."""
    # `logits_to_keep` 0 means all rows, so one row is computed and discarded.
    keep = last if len(last) else last.new_zeros(1)
    out = model(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=keep,
        **options,
    )
    logits: torch.Tensor = out.logits[0]
    return logits[: len(last)]
