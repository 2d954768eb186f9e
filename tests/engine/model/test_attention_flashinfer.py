"""FlashInfer gets the right keys: from a stand-in of the library, or on CUDA from itself."""

import importlib.util
import sys
import types

import pytest
import torch

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.attention_flashinfer import FlashInferAttention, PromptAttention
from engine.model.attention_hf import attend_segments
from engine.model.packed_batch import pack
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.kinds import decoder

BLOCK, HEADS, KV, SIZE = 4, 6, 2, 32
CUDA = torch.cuda.is_available()
WORKSPACE = {"cpu": 16, "cuda": 128 * 2**20}  # bytes


def attend_rows(query, key, value, scale, window):
    """One sequence: the last len(query) positions over all keys, in float64."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * scale
    row = torch.arange(len(query))[:, None] + len(key) - len(query)
    column = torch.arange(len(key))[None]
    hidden = (column > row) | (column < row - window if window >= 0 else column < 0)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value.double()).to(query.dtype)


class _Wrapper:
    """FlashInfer's, as its documentation describes it."""

    def __init__(self, workspace, order):
        assert workspace.dtype == torch.uint8 and order == "NHD"

    def plan(self, starts, page_starts, pages, last, heads, kv_heads, size, page, **options):
        assert (heads, kv_heads, size, page) == (HEADS, KV, SIZE, BLOCK)
        assert options["causal"]
        for whole in (starts, page_starts, pages, last):
            assert whole.dtype == torch.int32
        self._plan = starts, page_starts, pages.long(), last, options

    def run(self, query, kv):
        starts, page_starts, pages, last, options = self._plan
        out = []
        for index, q in enumerate(query.split(starts.diff().tolist())):
            mine = pages[page_starts[index] : page_starts[index + 1]]
            count = (len(mine) - 1) * BLOCK + int(last[index])
            key, value = (x[mine].flatten(0, 1)[:count] for x in kv)
            out.append(attend_rows(q, key, value, options["sm_scale"], options["window_left"]))
        return torch.cat(out)


@pytest.fixture
def flashinfer(monkeypatch):
    if importlib.util.find_spec("flashinfer") is None:
        fake = types.ModuleType("flashinfer")
        fake.BatchPrefillWithPagedKVCacheWrapper = _Wrapper
        monkeypatch.setitem(sys.modules, "flashinfer", fake)
        return torch.device("cpu")
    if not CUDA:
        pytest.skip("FlashInfer needs a CUDA device")
    return torch.device("cuda")


def check_attention(attention, device, window):
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    name = str(dtype).removeprefix("torch.")
    layout = KvLayout((LayerShape(KV, SIZE),), BLOCK, name, "x")
    cache = KvCache(layout, 60, device)
    cache.layers[0].normal_()
    blocks, spans = torch.randperm(60).tolist(), []
    for number, (start, count) in enumerate([(9, 1), (0, 1), (0, 13), (30, 5), (3, 2)]):
        new = Sequence(str(number), [1] * (start + count), 1, SamplingParams())
        new.blocks, blocks = blocks[:10], blocks[10:]
        spans.append(Span(new, start, count))
    for some in (spans, spans[2:]):
        batch = pack(some, cache)
        query = torch.randn(len(batch.tokens), HEADS, SIZE, device=device).to(dtype)
        arguments = {"scaling": 0.2, "window": window, "softcap": None}
        expected = attend_segments(query, cache.layers[0], batch, sinks=None, **arguments)
        for _ in range(2):
            got = attention(query, cache.layers[0], batch, **arguments)
            tolerance = {"rtol": 0.02, "atol": 0.02} if CUDA else {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(got, expected, **tolerance)


@pytest.mark.parametrize("window", [None, 6])
def test_flashinfer_gets_pages(flashinfer, window):
    check_attention(FlashInferAttention(flashinfer, WORKSPACE[flashinfer.type]), flashinfer, window)


class Attention:
    """A stand-in that counts its calls; `wrong` is added to what torch computes."""

    name = "stand-in"

    def __init__(self, wrong=0.0):
        self.calls = 0
        self._wrong = wrong

    def __call__(self, query, store, batch, **how):
        self.calls += 1
        return attend_segments(query, store, batch, sinks=None, **how) + self._wrong


def some_batch(counts):
    cache = KvCache(KvLayout((LayerShape(2, 32),), 16, "float32", "x"), 8, torch.device("cpu"))
    spans = []
    for number, count in enumerate(counts):
        new = Sequence(str(number), [1] * count, 1, SamplingParams())
        new.blocks = [number]
        spans.append(Span(new, 0, count))
    return torch.randn(sum(counts), 6, 32), cache.layers[0].normal_(), pack(spans, cache)


@pytest.mark.parametrize(
    ("theirs", "wrong", "wins", "told"),
    [
        (0.5, 0.0, True, "attention of prompts: FlashInfer (2048 tokens: 500000.0 of"),
        (0.98, 0.0, False, "attention of prompts: Triton (2048 tokens: 980000.0 of"),
        (0.5, 1.0, False, "FlashInfer is not used: its answer for 2048 tokens differs by"),
    ],
)
def test_flashinfer_computes_prompts_where_it_is_faster(theirs, wrong, wins, told, caplog):
    caplog.set_level("INFO")
    times = iter([theirs, 1.0])
    ours, other = Attention(), Attention(wrong)
    attention = PromptAttention(ours, other)
    attention.choose(decoder(), lambda run: next(times))
    assert attention.wins is wins
    assert ("for prompts" in attention.name) is wins
    assert told in caplog.text
    for counts, by_other in (([1, 1], 0), ([1, 5], int(wins))):
        other.calls = 0
        how = {"scaling": 0.2, "window": None, "softcap": None}
        attention(*some_batch(counts), **how)
        assert other.calls == by_other
