"""What computes logits from packed tokens: one interface, two ways.

`TransformersRunner` runs the model's own module with paged attention; it serves everything.
`CompactRunner` (engine/compact.py) is a forward of our own for the main families.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import torch

from engine import attention
from engine.batch import PackedBatch
from engine.graphs import DecodeReplays
from engine.kv_cache import KvFormat


class Runner(Protocol):
    """One model, ready to compute; it keeps KV in the order that `kv_format` says.

    `replays` are recordings of its decode steps, once there are some.
    """

    kv_format: KvFormat
    replays: DecodeReplays | None

    @property
    def name(self) -> str:
        """What computes, for the log."""
        ...

    def layers(self, batch: PackedBatch) -> Generator[None, None, torch.Tensor]:
        """Store the batch's keys and values, pausing between layers where that can be done.

        Gives logits [len(batch.last), vocabulary].
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

    def layers(self, batch: PackedBatch) -> Generator[None, None, torch.Tensor]:
        """See Runner; a module runs in one go."""
        yield from ()
        return run_module(
            self._model, batch.tokens, batch.positions, batch.last, tandem_batch=batch
        )


def whole(run: Generator[None, None, torch.Tensor]) -> torch.Tensor:
    """What a pass gives, without pauses."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            logits: torch.Tensor = end.value
            return logits


def run_module(
    model: Any,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """One pass of a module: logits [len(last), vocabulary]; an empty `last` computes none."""
    # `logits_to_keep` 0 means all; one discarded row is the least that can be asked for.
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
