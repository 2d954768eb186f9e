"""What computes logits from packed tokens: one interface, two ways.

`TransformersRunner` runs the model's own module with paged attention; it serves everything.
`CompactRunner` (engine/model/fused_forward.py) is a forward of our own for the main families.
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
    """A batch behind its last layer: `logits` [len(batch.last), vocabulary], and those of others.

    `logits_of` gives them for indices of tokens of the batch, [rows] to [rows, vocabulary].
    """

    logits: torch.Tensor
    logits_of: Callable[[torch.Tensor], torch.Tensor]


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

    def layers(self, batch: PackedBatch) -> Generator[int, None, ForwardOutput]:
        """Store the batch's keys and values, pausing behind layers where that can be done.

        At a pause it says how many layers have stored; all have before the logits are computed.
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
    """The logits that a pass gives, without pauses."""
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
