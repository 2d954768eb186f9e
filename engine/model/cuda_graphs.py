"""The decode step as a replay over buffers at fixed addresses, padded to a few batch sizes.

A `StaticBatch` has the inputs of a decode step. A step of fewer rows is padded with rows that write
to the cache's scratch block and see one token there. `DecodeReplays` records the forward over these
buffers once per size, on a GPU as a CUDA graph. After that it only fills the buffers. Tables are as
wide as the context, and launches depend on shapes alone, so a recording is right for any lengths.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from engine.errors import first_line
from engine.kv.cache import KvCache
from engine.model.packed_batch import PackedBatch, QuerySegment, blocks_of
from engine.types.sequence import Span

log = logging.getLogger(__name__)

Tensor = torch.Tensor
Step = Callable[[], Tensor]

# Tuned: the batch sizes that are recorded; a step is padded to the next one.
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
MOST_ROWS = BUCKETS[-1]
_NO_BLOCKS: list[int] = []


def buckets_for(rows: int) -> tuple[int, ...]:
    """The batch sizes for steps of up to that many rows; larger steps than the last run eagerly."""
    return BUCKETS[: bisect.bisect_left(BUCKETS, rows) + 1]


class StaticBatch:
    """Inputs of a decode step of up to `rows` sequences of up to `width` blocks."""

    def __init__(self, cache: KvCache, rows: int, width: int) -> None:
        self._cache = cache
        self._rows = rows
        self._width = width
        scratch, device = cache.scratch, cache.device
        pinned = device.type == "cuda"
        # tokens, positions, slots; first positions; block tables.
        longs = torch.zeros((3, rows), dtype=torch.long)
        longs[2] = scratch * cache.layout.block_size
        firsts = torch.zeros(rows, dtype=torch.int32)
        tables = torch.full((rows, width), scratch, dtype=torch.int32)
        host = (longs, firsts, tables)
        self._host = tuple(t.pin_memory() for t in host) if pinned else host
        self._device = tuple(t.clone() if device.type == "cpu" else t.to(device) for t in host)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._last = torch.arange(rows, device=device)
        self._sampled = torch.zeros(rows, dtype=torch.long, device=device)
        self._tables_of = [_NO_BLOCKS] * rows
        self._copied = torch.cuda.Event() if pinned else None

    def can_hold(self, spans: list[Span]) -> bool:
        """Whether these spans are a decode step for which the buffers are large enough."""
        return len(spans) <= self._rows and all(
            span.count == 1 and span.samples and len(span.sequence.blocks) <= self._width
            for span in spans
        )

    def packed(self, rows: int) -> PackedBatch:
        """The first rows as a batch; a computation of it reads what `fill` writes later."""
        (tokens, positions, slots), firsts, tables = self._device
        every = slice(0, rows)
        # A negative number stands for the token that this row of the step before sampled.
        known, rows_before = tokens[every], (-1 - tokens[every]).clamp(min=0)
        return PackedBatch(
            cache=self._cache,
            tokens=torch.where(known < 0, self._sampled[rows_before], known),
            positions=positions[every],
            slots=slots[every],
            last=self._last[every],
            starts=self._starts[: rows + 1],
            firsts=firsts[every],
            tables=tables[every],
            segments=(QuerySegment(every, every, 1, self._width),),
            order=tuple(range(rows)),
        )

    def fill(self, spans: list[Span]) -> None:
        """Write the spans to the first rows, and padding to the others, in stream order."""
        if self._copied is not None:
            # The host's buffers may still be read for the step before.
            self._copied.synchronize()
        count, size = len(spans), self._cache.layout.block_size
        self._fill_tables(spans)
        (tokens, positions, slots), firsts, _ = (t.numpy() for t in self._host)
        tokens[:count] = [
            s.sequence.tokens[s.start] if s.follows is None else -1 - s.follows for s in spans
        ]
        positions[:count] = firsts[:count] = [span.start for span in spans]
        # Not by an index of arrays: that lets other threads have Python's lock in between.
        slots[:count] = [s.sequence.blocks[s.start // size] * size + s.start % size for s in spans]
        tokens[count:] = positions[count:] = firsts[count:] = 0
        slots[count:] = self._cache.scratch * size
        for here, there in zip(self._host[:2], self._device[:2], strict=True):
            there.copy_(here, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def keep(self, tokens: Tensor) -> None:
        """Keep the tokens that were sampled of the first rows, for spans that follow them.

        A row without a token gives token 0, so that no index is out of range.
        """
        torch.clamp(tokens, min=0, out=self._sampled[: len(tokens)])

    def _fill_tables(self, spans: list[Span]) -> None:
        """Rewrite the rows whose tables changed, and copy the range that holds them.

        A sequence gets a new list with each new block, so its old list has the same blocks.
        """
        known, padding = self._tables_of, self._rows - len(spans)
        wanted = [*[span.sequence.blocks for span in spans], *[_NO_BLOCKS] * padding]
        changed = [row for row, blocks in enumerate(wanted) if blocks is not known[row]]
        if not changed:
            return
        host, device = self._host[2], self._device[2]
        table = host.numpy()
        for row in changed:
            blocks = blocks_of(spans[row].sequence) if row < len(spans) else ()
            table[row, : len(blocks)] = blocks
            table[row, len(blocks) : max(len(blocks), len(known[row]))] = self._cache.scratch
        self._tables_of = wanted
        rows = slice(changed[0], changed[-1] + 1)
        device[rows].copy_(host[rows], non_blocking=True)


class DecodeReplays:
    """Decode steps through recordings, for batch sizes that have one."""

    def __init__(
        self,
        forward: Callable[[PackedBatch], Tensor],
        cache: KvCache,
        width: int,
        record: Callable[[Step], Step],
        buckets: tuple[int, ...] = BUCKETS,
    ) -> None:
        self._forward = forward
        self._record = record
        self._buckets = buckets
        self._static = StaticBatch(cache, buckets[-1], width)
        self._recorded: dict[int, Step] = {}

    @property
    def sizes(self) -> frozenset[int]:
        """The batch sizes that have a recording."""
        return frozenset(self._recorded)

    def logits(self, spans: list[Span]) -> Tensor | None:
        """Logits [len(spans), vocabulary], or None where the step must run eagerly.

        The next replay overwrites the logits.
        """
        bucket = bisect.bisect_left(self._buckets, len(spans))
        if bucket == len(self._buckets) or not self._static.can_hold(spans):
            return None
        step = self._recorded.get(self._buckets[bucket])
        if step is None:
            return None
        self._static.fill(spans)
        return step()[: len(spans)]

    @property
    def most_rows(self) -> int:
        """The most rows of a step that surely has a recording."""
        missing = [size for size in self._buckets if size not in self._recorded]
        below = self._buckets[: self._buckets.index(missing[0])] if missing else self._buckets
        return below[-1] if below else 0

    def keep(self, tokens: Tensor) -> None:
        """Keep the sampled tokens [rows] of the last step, for spans that follow its rows."""
        self._static.keep(tokens)

    def pieces(self) -> Iterator[None]:
        """Record size after size, the largest first: the smaller ones use its memory.

        Recording computes on padding alone. A size that cannot be recorded stays eager.
        """
        for rows in reversed(self._buckets):
            began_s = time.monotonic()
            self._static.fill([])
            try:
                self._recorded[rows] = self._record(partial(self._step, rows))
            except RuntimeError as error:
                log.warning("decode of %d stays eager: %s", rows, first_line(error))
            else:
                log.info("decode of %d recorded in %.2f s", rows, time.monotonic() - began_s)
            yield

    def record_draws(
        self, record_draws: Callable[[Tensor, Callable[[Step], Step]], None]
    ) -> Iterator[None]:
        """Record the draws from the logits of size after size; see `DeviceSampler.record`.

        They are recordings of their own: a mask is made while the forward runs.
        """
        for rows, step in self._recorded.items():
            self._static.fill([])
            try:
                record_draws(step(), self._record)
            except RuntimeError as error:
                log.warning("draws of %d stay eager: %s", rows, first_line(error))
            yield

    def _step(self, rows: int) -> Tensor:
        # A new batch each time: its tokens and masks must be made from the filled buffers.
        return self._forward(self._static.packed(rows))


class CudaGraphs:
    """Records a step as a CUDA graph. All graphs share memory, so one replays at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run the step twice, so that kernels and workspaces exist, then capture it.

        The capture watches this thread alone, as KV transfers may use the device meanwhile.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            logits = step()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay
