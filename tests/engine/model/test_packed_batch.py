"""Packed arrays are what each token's own position and block say."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.packed_batch import by_one_copy, pack, tables_of
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scoring
from engine.types.sequence import Sequence, Span

BLOCK, POOL = 4, 64
CACHE = KvCache(KvLayout((LayerShape(1, 4),), BLOCK, "float32", "x"), POOL, torch.device("cpu"))


@st.composite
def spans(draw):
    found, free = [], draw(st.permutations(range(POOL)))
    for number in range(draw(st.integers(1, 5))):
        start, count, more = draw(st.integers(0, 9)), draw(st.integers(1, 9)), draw(st.booleans())
        length = start + count + more
        sequence = Sequence(str(number), list(range(length)), length, SamplingParams())
        needed = -(-length // BLOCK)
        sequence.blocks, free = list(free[:needed]), free[needed:]
        found.append(Span(sequence, start, count))
    return found


@given(spans())
def test_each_token_has_its_position_and_its_slot(given_spans):
    batch = pack(given_spans, CACHE)
    packed = [given_spans[index] for index in batch.order]
    assert [span.count > 1 for span in packed] == sorted(span.count > 1 for span in packed)
    positions = [range(span.start, span.start + span.count) for span in packed]
    flat = [(span.sequence, p) for span, own in zip(packed, positions, strict=True) for p in own]
    assert batch.tokens.tolist() == [one.tokens[p] for one, p in flat]
    assert batch.positions.tolist() == [p for _, p in flat]
    slots = [one.blocks[p // BLOCK] * BLOCK + p % BLOCK for one, p in flat]
    assert batch.slots.tolist() == slots
    starts = batch.starts.tolist()
    assert [b - a for a, b in pairwise(starts)] == [s.count for s in packed]
    assert batch.firsts.tolist() == [span.start for span in packed]
    ends = [end - 1 for end, span in zip(starts[1:], packed, strict=True) if span.samples]
    assert batch.last.tolist() == ends
    for row, span in zip(batch.tables.tolist(), packed, strict=True):
        blocks = span.sequence.blocks[: len(row)]
        assert row == blocks + [CACHE.scratch] * (len(row) - len(blocks))
    dtypes = [batch.tokens.dtype, batch.positions.dtype, batch.slots.dtype, batch.last.dtype]
    assert dtypes == [torch.long] * 4
    assert {batch.starts.dtype, batch.firsts.dtype, batch.tables.dtype} == {torch.int32}


@given(spans())
def test_segments_hold_all_spans_and_the_blocks_that_they_reach(given_spans):
    batch = pack(given_spans, CACHE)
    packed = [given_spans[index] for index in batch.order]
    covered = [index for one in batch.segments for index in range(*one.spans.indices(len(packed)))]
    assert covered == list(range(len(packed)))
    for one in batch.segments:
        own = packed[one.spans]
        assert {span.count for span in own} == {one.queries}
        assert one.width == max(-(-(span.start + span.count) // BLOCK) for span in own)
        assert one.tokens.stop - one.tokens.start == sum(span.count for span in own)


def test_a_batch_without_a_sampled_token_has_no_last():
    sequence = Sequence("a", [1] * 8, 8, SamplingParams(), blocks=[1, 2])
    assert pack([Span(sequence, 0, 4)], CACHE).last.tolist() == []


@pytest.mark.parametrize(("first", "scored"), [(2, True), (7, False)])
def test_a_batch_is_scored_where_a_span_reaches_scored_tokens(first, scored):
    sequence = Sequence("a", [1] * 8, 8, SamplingParams(), blocks=[1, 2])
    sequence.scoring = Scoring(first=first, top=0, prompt_tokens=8)
    assert pack([Span(sequence, 0, 4)], CACHE).scored is scored


@given(spans())
def test_one_copy_brings_the_same_arrays_at_aligned_addresses(given_spans):
    """As on a device that is not the CPU; here the copy ends on the CPU."""
    table = tables_of(given_spans, 5, CACHE.scratch)
    last = torch.arange(len(given_spans)).numpy()
    copied = by_one_copy((last, table[:0], table, last), torch.device("cpu"))
    for there, here in zip(copied, (last, table[:0], table, last), strict=True):
        assert there.shape == here.shape
        assert there.tolist() == here.tolist()
        assert (there.data_ptr() - copied[0].data_ptr()) % 64 == 0
