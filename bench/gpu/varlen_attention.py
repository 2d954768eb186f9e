"""torch's varlen attention behind the engine's interface, to be measured against Triton's kernel.

No deployment can choose it: on an H200 it was slower. A test checks its calls.
"""

from __future__ import annotations

import torch

from engine.model.attention_triton import TritonAttention
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

# Triton's scale is for powers of two, torch's for powers of e.
_LN2 = 0.6931471805599453


class VarlenPrefill(TritonAttention):
    """Longer spans by torch's varlen attention over keys gathered from their blocks.

    It knows no block tables, but a copy of the keys costs little beside a prompt's products. It
    cannot cap scores and has no sinks, so Triton's kernel computes models that do.
    """

    name = "Triton attention, torch's varlen for prompts"
    _keys: tuple[PackedBatch, Tensor, Tensor, int] | None = None

    def _prefill(
        self,
        query: Tensor,
        store: Tensor,
        batch: PackedBatch,
        single: int,
        longest: int,
        sinks: Tensor,
        scale: float,
        shape: dict[str, int | float],
        out: Tensor,
    ) -> None:
        """See TritonAttention."""
        if shape["CAP"] or shape["SINKS"]:
            super()._prefill(query, store, batch, single, longest, sinks, scale, shape, out)
            return
        from torch.nn.attention.varlen import varlen_attn

        slots, ends, most = self._gathered(batch, single)
        rows = store.flatten(1, 2)
        starts = batch.starts[single:] - single
        window = int(shape["WINDOW"]) - 1 if shape["WINDOW"] else -1
        key, value = rows[0][slots], rows[1][slots]
        if key.shape[1] != query.shape[1]:
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        answer = varlen_attn(
            query[single:],
            key,
            value,
            starts,
            ends,
            longest,
            most,
            scale=scale * _LN2,
            window_size=(window, 0),
        )
        assert isinstance(answer, Tensor)
        out[single:] = answer

    def _gathered(self, batch: PackedBatch, single: int) -> tuple[Tensor, Tensor, int]:
        """The slots of the longer spans' keys, span after span; computed once per batch."""
        if self._keys is None or self._keys[0] is not batch:
            size = batch.cache.layout.block_size
            counts = batch.starts[single:].diff() + batch.firsts[single:]
            lengths = counts.tolist()
            positions = [torch.arange(n, device=counts.device) for n in lengths]
            slots = [
                table[at // size].long() * size + at % size
                for table, at in zip(batch.tables[single:], positions, strict=True)
            ]
            ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
            self._keys = batch, torch.cat(slots), ends, max(lengths)
        return self._keys[1:]
