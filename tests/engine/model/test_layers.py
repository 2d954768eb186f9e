"""Whole layers: one suite for all that compute them, against float64."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from engine import kernels
from engine.cpu.core_sharing import Beside, usable_cores
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model.layers_cpu import why_not
from engine.model.packed_batch import pack
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span
from tests.engine.kinds import BLOCK, BLOCKS, BUILDS, LAYERS, POSITIONS, SHAPES, decoder, kind_named
from tests.engine.reference import layer_stream, linear, rms, steps

PARTS = {
    **SHAPES,
    "GELU, posts, offset": {"gelu": True, "posts": True, "offset": 1.0},
    "biases": {"biased": True},
    "biases, posts": {"biased": True, "posts": True},
    "many heads to a KV head": {"heads": 28, "kv_heads": 1},
    "more of them than a tile has": {"heads": 36, "kv_heads": 1},
    "no whole number of tiles": {"inner": 80},
}


@pytest.fixture(params=LAYERS, ids=", ".join)
def kind(request):
    return kind_named(*request.param)


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def close(kind, got, expected):
    """Within what the precision's roundings add up to along a layer."""
    error = (got.cpu().double() - expected).abs()
    limit = 1e-4 if kind.dtype == torch.float32 else 0.05
    assert error.max() <= limit * expected.abs().max()
    assert error.mean() <= limit / 4 * expected.abs().mean()


def run_pieces(kind, model, streams, layers, beside=Beside):
    """The streams behind the layers, computed piece by piece over scattered blocks."""
    by = kind.make(kind.there(model))
    ready = [by.prepare(kind.there(layer)) for layer in layers]
    cache = cache_for(kind, model, layers, by.kv_format)
    got = [[] for _ in streams]
    for spans in steps([len(x) for x in streams]):
        batch = pack(spans, cache)
        batch.beside = beside
        packed = [spans[index] for index in batch.order]
        parts = [streams[int(s.sequence.owner)][s.start : s.start + s.count] for s in packed]
        out = by.run(kind.there(torch.cat(parts)), ready, cache.layers, batch)
        for span, part in zip(packed, out.split([s.count for s in packed]), strict=True):
            got[int(span.sequence.owner)].append(part)
    return [torch.cat(parts) for parts in got]


def cache_for(kind, model, layers, kv_format):
    layout = KvLayout(
        tuple(LayerShape(model.kv_heads, model.head_size) for _ in layers),
        BLOCK,
        str(kind.dtype).removeprefix("torch."),
        "x",
    )
    return KvCache(layout, BLOCKS, torch.device(kind.device), kv_format)


@pytest.mark.parametrize("parts", PARTS)
def test_a_layer(kind, parts):
    """Chunks and single tokens in one batch, step after step, against the whole at once."""
    model = decoder(**PARTS[parts])
    if kind.name in BUILDS and (reason := why_not(model, BLOCK)):
        pytest.skip(reason)
    streams = [torch.randn(length, 64).bfloat16() for length in (1, 18, 130)]
    for x, got in zip(streams, run_pieces(kind, model, streams, model.layers), strict=True):
        close(kind, got, layer_stream(x, model.layers[0], model))


def run_in(kind, model, x, sizes):
    """One stream behind the layers, in passes of these sizes."""
    by = kind.make(kind.there(model))
    ready = [by.prepare(kind.there(layer)) for layer in model.layers]
    cache = cache_for(kind, model, model.layers, by.kv_format)
    sequence, got = Sequence("0", [1] * len(x), len(x), SamplingParams()), []
    sequence.blocks = list(range(-(-len(x) // BLOCK)))
    for part in x.split(sizes):
        batch = pack([Span(sequence, sequence.computed, len(part))], cache)
        got.append(by.run(kind.there(part), ready, cache.layers, batch))
        sequence.computed += len(part)
    return torch.cat(got)


LONG = POSITIONS - 7  # more rows than are taken at once, the last of them in part


def test_a_long_prompt_in_one_pass(kind):
    model, x = decoder(layers=2), torch.randn(LONG, 64).bfloat16()
    got = run_in(kind, model, x, [LONG])
    for layer in model.layers:
        x = layer_stream(x, layer, model)
    close(kind, got, x)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize(
    "parts", ["grouped", "long window", "multi-query", "heads of 256", "capped"]
)
def test_a_token_has_the_same_numbers_in_a_prompt_and_in_a_step(name, parts):
    """To the bit, however many are computed with it."""
    kind = kind_named(name, "bfloat16")
    model = decoder(**{"long window": {"window": 200}, **SHAPES}[parts], layers=2)
    x = torch.randn(LONG, 64).bfloat16()
    pieces = run_in(kind, model, x, [1, 2, 3, 4, 33, 5, 17, 1, 64, 121, LONG - 251])
    assert torch.equal(run_in(kind, model, x, [LONG]), pieces)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize(
    "parts", ["grouped", "long window", "multi-head", "multi-query", "capped", "32 heads"]
)
def test_a_long_sequences_steps_have_the_same_numbers_by_any_number_of_threads(
    threads, name, parts
):
    """To the bit: with more threads the heads of a query are shared out."""
    kind = kind_named(name, "bfloat16")
    more = {"long window": {"window": 200}, "32 heads": {"heads": 32, "kv_heads": 8, "size": 128}}
    model = decoder(**{**more, **SHAPES}[parts], layers=2)
    x = torch.randn(293, 64).bfloat16()
    by_steps = run_in(kind, model, x, [290, 1, 1, 1])
    assert torch.equal(run_in(kind, model, x, [293]), by_steps)


@pytest.mark.parametrize("lengths", [(5, 9), (40,), (1, 18, 130)])
@pytest.mark.parametrize("parts", [{}, {"posts": True, "window": 20}, {"heads": 28, "kv_heads": 1}])
def test_wanted_rows_alone(kind, parts, lengths):
    """Where a prompt's chunk ends before the prompt, that is none."""
    model = decoder(**parts, layers=2)
    by = kind.make(kind.there(model))
    ready = [by.prepare(kind.there(layer)) for layer in model.layers]
    cache = cache_for(kind, model, model.layers, by.kv_format)
    for spans in steps(lengths):
        batch = pack(spans, cache)
        x = kind.randn(sum(span.count for span in spans), 64)
        every = by.run(x.clone(), ready, cache.layers, batch)
        kept = [layer.clone() for layer in cache.layers]
        found = by.run(x.clone(), ready, cache.layers, batch, batch.last)
        assert found.shape == (len(batch.last), 64)
        torch.testing.assert_close(found, every[batch.last], rtol=0.01, atol=0.01)
        assert all(map(torch.equal, cache.layers, kept))


def test_there_are_two_kinds_of_products():
    """They round in other places, so the same layer is nearly the same, and not quite."""
    found = []
    for name in ("C++, products of pairs", "C++, products of float32"):
        kind = kind_named(name, "bfloat16")
        model, streams = decoder(), [torch.randn(130, 64).bfloat16()]
        found += run_pieces(kind, model, streams, model.layers)
    one, other = found
    assert not torch.equal(one, other)
    close(kind, one, other.double())


def test_where_there_is_amx_products_are_made_in_its_tiles():
    """Where an Intel without it has float32 ones."""
    if "amx_bf16" not in kernels.processor():
        pytest.skip("a processor without AMX")
    arch_prctl, request, tile_data = 158, 0x1023, 18
    refused = ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) != 0
    found = []
    for name in ("C++", "C++, products of float32"):
        kind, model = kind_named(name, "bfloat16"), decoder()
        found.append(run_in(kind, model, torch.randn(130, 64).bfloat16(), [130]))
    assert torch.equal(*found) == refused


@pytest.mark.parametrize("count", [1, 3, 20, 33])
def test_layers_by_any_number_of_threads(threads, count):
    """More threads than cores, and any number of rows: a late thread finds no incomplete phase."""
    for _ in range(5):
        layers_are_right("C++", count)


def layers_are_right(name, count):
    kind = kind_named(name, "bfloat16")
    model = decoder(layers=3, posts=True)
    streams = [torch.randn(7 + n % 3, 64).bfloat16() for n in range(count)]
    for x, got in zip(streams, run_pieces(kind, model, streams, model.layers), strict=True):
        for layer in model.layers:
            x = layer_stream(x, layer, model)
        close(kind, got, x)


def test_fewer_threads_than_asked_for_do_not_wait_for_the_others():
    """OpenMP gives what its limit allows, whatever torch was told."""
    kind_named("C++", "bfloat16")
    code = (
        "import torch; torch.set_num_threads(3)\n"
        "from tests.engine.model import test_layers as t\n"
        "t.layers_are_right('C++', 20)\n"
    )
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=90)


@pytest.mark.parametrize("threads", [1, 2, 5], indirect=True)
@pytest.mark.parametrize("stepping", ["never", "always", "now and then"])
def test_threads_give_way_to_others_steps_and_come_back(threads, stepping):
    """The result is the same to the bit, whichever thread computed it."""
    kind, model = kind_named("C++", "bfloat16"), decoder(layers=3, posts=True)
    streams = [torch.randn(length, 64).bfloat16() for length in (1, 40, 130)]
    expected = run_pieces(kind, model, streams, model.layers)
    step, over = torch.zeros(2, dtype=torch.float64), threading.Event()
    if stepping == "always":
        step[0] = 1.0

    def now_and_then():
        while not over.wait(0.0002):
            step[0] = 1.0 - step[0]

    other = threading.Thread(target=now_and_then)
    if stepping == "now and then":
        other.start()
    try:
        for _ in range(20):
            found = run_pieces(
                kind, model, streams, model.layers, lambda: Beside([step], 0.0, threads)
            )
            assert all(map(torch.equal, found, expected))
    finally:
        over.set()
        if other.ident is not None:
            other.join(10)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the time of threads")
@pytest.mark.skipif(usable_cores() < 2, reason="needs a core for each of two threads")
def test_an_operation_that_gives_way_leaves_its_core():
    """By processor time: of a second thread as much as of the first, or next to none."""
    kind_named("C++", "bfloat16")
    code = "from tests.engine.model import test_layers as t\nt.second_thread_gives_way()\n"
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=90)


def second_thread_gives_way():
    torch.set_num_threads(1)
    kind, model = kind_named("C++", "bfloat16"), decoder(layers=3)
    by = kind.make(model)
    ready = [by.prepare(layer) for layer in model.layers]
    cache = cache_for(kind, model, model.layers, by.kv_format)
    spans = next(steps([POSITIONS] * 3))
    batch, x = pack(spans, cache), torch.randn(sum(s.count for s in spans), 64).bfloat16()

    def second_over_first(step):
        batch.beside = lambda: Beside([torch.tensor(step, dtype=torch.float64)], 0.0, 2)
        before = times_of_threads()
        for _ in range(50):
            by.run(x.clone(), ready, cache.layers, batch)
        first, second = (b - a for a, b in zip(before, times_of_threads(), strict=True))
        return second / first

    def gives_way():
        """By two measurements in a row, as a busy machine has little for any second thread."""
        return second_over_first([0.0, 0.0]) > 0.5 and second_over_first([1.0, 0.0]) < 0.2

    assert any(gives_way() for _ in range(200))


def times_of_threads():
    """Nanoseconds on a core, of this thread and of all others."""
    own = threading.get_native_id()
    times = [
        (int(task.name) == own, int((task / "schedstat").read_text().split()[0]))
        for task in Path("/proc/self/task").iterdir()
    ]
    return sum(ns for mine, ns in times if mine), sum(ns for mine, ns in times if not mine)


@pytest.mark.parametrize("began_s", [0.0, 1.0])  # with all threads, and with the first alone
def test_wanted_rows_of_threads_that_come_and_go(began_s):
    kind, model = kind_named("C++", "bfloat16"), decoder(layers=1)
    by = kind.make(model)
    ready = [by.prepare(layer) for layer in model.layers]
    cache = cache_for(kind, model, model.layers, by.kv_format)
    step = torch.tensor([began_s, 0.0], dtype=torch.float64)
    spans = next(steps([POSITIONS] * 3))
    batch, x = pack(spans, cache), torch.randn(sum(s.count for s in spans), 64).bfloat16()
    wanted = torch.arange(0, len(x), 7)
    every = by.run(x.clone(), ready, cache.layers, batch)
    batch.beside = lambda: Beside([step], 0.0, 3)
    for _ in range(20):
        found = by.run(x.clone(), ready, cache.layers, batch, wanted)
        torch.testing.assert_close(found, every[wanted], rtol=0.01, atol=0.01)


def test_a_halted_step_begins_nothing_more(threads):
    kind, model = kind_named("C++", "bfloat16"), decoder(layers=3)
    by = kind.make(model)
    ready = [by.prepare(layer) for layer in model.layers]
    cache = cache_for(kind, model, model.layers, by.kv_format)
    spans = next(steps([60]))
    batch = pack(spans, cache)
    batch.halted.fill_(1)
    by.run(torch.randn(sum(s.count for s in spans), 64).bfloat16(), ready, cache.layers, batch)
    assert not any(layer.any() for layer in cache.layers)


@pytest.mark.parametrize("rows", [0, 1, 5, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_logits(kind, rows, biased):
    model = decoder(biased=biased)
    by = kind.make(kind.there(model))
    x = torch.randn(rows, 64).bfloat16()
    got = by.logits(kind.there(x), by.prepare_head())
    assert got.shape == (rows, 10)
    if rows:
        close(kind, got, linear(rms(x, model.final_norm, model), model.head))


def test_why_the_c_operations_cannot_serve_a_model_is_reported():
    assert why_not(decoder(), 16) is None
    assert "block size, 10" in why_not(decoder(), 10)
    assert "heads of 16" in why_not(decoder(size=16), 16)
