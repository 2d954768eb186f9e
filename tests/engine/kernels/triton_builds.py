"""Compile every Triton kernel for a Hopper GPU, which needs none: python -m, one line each."""

import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import (
    filters_triton,
    fp8_triton,
    fused_triton,
    logprobs_triton,
    paged_triton,
    sampling_triton,
    skinny_triton,
)
from engine.model.attention_triton import decode_tiles, power_of_two, prefill_tiles
from engine.model.products.skinny_tiles import tiles_for

HOPPER = GPUTarget("cuda", 90, 32)
ITEM = {"bf16": 2, "fp16": 2, "fp32": 4}


def attention(
    kernel, dtype, size, group=4, window=0, cap=0.0, splits=8, sinks=False, tiles=None, store=None
):
    """(kernel, signature of its run-time arguments, constants, tiles)."""
    common = {"tables": "*i32", "firsts": "*i32", "value_offset": "i64", "table_stride": "i32"}
    signature = {"query": f"*{dtype}", "store": f"*{store or dtype}", "sinks": f"*{dtype}"}
    signature |= {"out": f"*{dtype}", **common}
    signature["scale"] = "fp32"
    constants = {"GROUP": group, "KV": 8, "SIZE": size, "DIMS": power_of_two(size), "BLOCK": 16}
    constants |= {"WINDOW": window, "CAP": cap, "SINKS": sinks}
    if kernel is paged_triton.decode:
        tiles = tiles or decode_tiles(group, size, ITEM[dtype])
        signature |= {"partials": "*fp32", "weights": "*fp32"}
        constants |= {"SPLITS": splits}
    else:
        tiles = tiles or prefill_tiles(2048, group, size, ITEM[dtype])
        signature["starts"] = "*i32"
    constants |= {"ROWS": tiles.rows, "TILE": tiles.keys}
    return kernel, signature, constants, tiles.warps, tiles.stages


def fused():
    """The small kernels, in bfloat16 for an 8 B shape."""
    pointers = dict.fromkeys(("branch", "residual", "weight", "out"), "*bf16")
    numbers = {"eps": "fp32", "offset": "fp32"}
    norm = {"WIDTH": 4096, "DIMS": 4096, "ADDS": True, "PDL": True}
    yield fused_triton.add_rms_norm, pointers | numbers, norm, 8, 3
    pointers = dict.fromkeys(("qkv", "query_norm", "key_norm", "query", "store"), "*bf16")
    pointers |= {"cosine": "*fp32", "sine": "*fp32", "positions": "*i64", "slots": "*i64"}
    rope = {"HEADS": 32, "KV": 8, "SIZE": 128, "DIMS": 128, "HALF": 64, "TAKE": 16, "PDL": True}
    for normed, store in ((False, "*bf16"), (True, "*bf16"), (False, "*fp8e4nv")):
        signature = pointers | numbers | {"value_offset": "i64", "store": store}
        yield fused_triton.rope_store, signature, rope | {"NORMED": normed}, 4, 3
    for gelu in (False, True):
        constants = {"WIDTH": 14336, "DIMS": 1024, "GELU": gelu, "PDL": gelu}
        yield fused_triton.gate, {"gate_up": "*bf16", "out": "*bf16"}, constants, 4, 3
    pointers = dict.fromkeys(("gate_up", "bias", "out"), "*bf16") | {"experts": "*i64"}
    constants = {"WIDTH": 2880, "DIMS": 1024, "BIASED": True}
    yield fused_triton.clamped_gate, pointers | {"alpha": "fp32", "limit": "fp32"}, constants, 4, 3
    pointers = {"partials": "*fp32", "weights": "*fp32", "out": "*bf16"}
    yield paged_triton.combine, pointers, {"SIZE": 128, "DIMS": 128, "SPLITS": 64}, 4, 3


def fp8():
    """The kernels of FP8 weights, for a product of an 8 B shape."""
    quantise = {"x": "*bf16", "fixed": "*fp32", "values": "*fp8e4nv", "scales": "*fp32"}
    quantise |= {"largest": "fp32", "least": "fp32"}
    for width in (128, 4096):
        constants = {"IN": 4096, "WIDTH": width, "DIMS": width, "FIXED": False}
        yield fp8_triton.quantise, quantise, constants, max(1, width // 512), 3
    product = {"x": "*fp8e4nv", "weight": "*fp8e4nv", "x_scales": "*fp32", "scales": "*fp32"}
    product |= {"bias": "*bf16", "out": "*bf16", "rows": "i32"}
    shape = {"OUT": 4096, "IN": 4096, "HEIGHT": 128, "WIDTH": 128, "BIASED": False}
    for tall, wide in ((16, 32), (64, 128)):
        yield fp8_triton.block_product, product, shape | {"TALL": tall, "WIDE": wide}, 4, 4


def skinny(dtype, rows, *, gated=False, pdl=True, even=True):
    """The product of few rows, for attention's output or the gate of an 8 B shape."""
    tiles = tiles_for(4096, 4096, ITEM[dtype], 132, gated=gated)
    signature = dict.fromkeys(("x", "weight", "bias", "out"), f"*{dtype}")
    signature |= {"partials": "*fp32", "arrivals": "*i32"}
    signature |= dict.fromkeys(("rows", "outputs", "inputs", "per_split"), "i32")
    constants = {"ROWS": rows, "OUTPUTS": tiles.outputs, "DEPTH": tiles.depth, "AHEAD": 4}
    constants |= {"SPLITS": tiles.splits, "EVEN": even, "BIASED": True, "GATED": gated}
    constants |= {"GELU": False, "PDL": pdl}
    return skinny_triton.skinny, signature, constants, tiles.warps, tiles.stages


def sampling():
    """The draw, for logits of an 8 B shape."""
    row = dict.fromkeys(("slots", "mask_rows", "starts", "lengths", "top_k", "wanted"), "*i32")
    row |= dict.fromkeys(("temperatures", "noise", "min_p", "top_p", "targets"), "*fp64")
    row |= dict.fromkeys(("repetition", "presence", "frequency", "floors"), "*fp32")
    tile = {"values": "*fp32", "best_tokens": "*i32", "sums": "*fp64", "numbers": "*i32"}
    search = {"prefixes": "*i64", "bases": "*fp64", "partials": "*fp64", "by_count": "*i64"}
    every = row | tile | search | {"scores": "*fp32", "counts": "*i32", "tokens": "*i32"}
    every |= {"logits": "*bf16", "stride": "i64", "banned": "*u8", "step": "i32"}
    logs = {"tops": "*fp32", "sums": "*fp32", "ids": "*i32", "tokens": "*i64", "chosen": "*fp32"}
    logs = every | logs | {"best_values": "*fp32", "best_ids": "*i64"}
    constants = {"VOCABULARY": 128256, "TILE": 2048, "COUNT": 63, "TILES": 64, "ROWS": 64}
    constants |= {"BYTES": 16032, "MOST": 1024, "BY_COUNT": False, "DRAWS": True}
    constants |= {"FILTERED": True, "COUNTED": True}
    draws, filters = sampling_triton, filters_triton
    for kernel in (draws.edit, draws.add_bias, draws.best, draws.weigh):
        yield of_names(kernel, every, constants)
    yield of_names(draws.pick, every | {"tokens": "*i64"}, constants)
    for kernel in (filters.narrow, filters.total, filters.aim, filters.settle):
        yield of_names(kernel, every, constants)
    for kernel in (logprobs_triton.likeliest, logprobs_triton.logprobs):
        yield of_names(kernel, logs, constants | {"MOST": 32, "WIDTH": 20})


def of_names(kernel, types, constants):
    """A launch whose arguments are those that the kernel names."""
    names = set(kernel.arg_names)
    signature = {name: kind for name, kind in types.items() if name in names - set(constants)}
    return kernel, signature, {n: v for n, v in constants.items() if n in names}, 4, 3


def everything():
    """All launches that are worth a look."""
    for kernel in (paged_triton.decode, paged_triton.prefill):
        yield attention(kernel, "bf16", 128)
        yield attention(kernel, "fp16", 64, group=7)
        yield attention(kernel, "bf16", 96, window=512)
        yield attention(kernel, "bf16", 64, group=8, window=128, sinks=True)
        yield attention(kernel, "bf16", 256, group=2, cap=50.0)
        yield attention(kernel, "fp32", 128)
        yield attention(kernel, "bf16", 128, store="fp8e4nv")
    yield from fused()
    yield from fp8()
    for rows in (16, 32, 64):
        yield skinny("bf16", rows)
        yield skinny("bf16", rows, gated=True)
    yield skinny("fp16", 64, pdl=False, even=False)
    yield skinny("fp32", 16)
    yield from sampling()


def compiled(kernel, signature, constants, warps, stages):
    """Build one, as the launcher would: pointers and strides are multiples of 16."""
    names = kernel.arg_names
    types = {n: signature.get(n, "constexpr") for n in names}
    places = {(names.index(n),): value for n, value in constants.items()}
    divisible = [["tt.divisibility", 16]]
    attributes = {
        (names.index(n),): divisible
        for n, kind in signature.items()
        if kind.startswith("*") or n in ("value_offset", "outputs", "inputs")
    }
    source = ASTSource(kernel, types, places, attributes)
    return triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": stages})


def resources(binary):
    """Registers, spilled bytes and shared memory, and the matrix instructions in the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    registers, stack = found.groups() if found else ("?", "?")
    ptx = binary.asm["ptx"]
    shared = binary.metadata.shared
    return f"registers {registers}, stack {stack}, shared {shared}, " + ", ".join(
        f"{name} {ptx.count(name)}"
        for name in ("wgmma.mma_async", "mma.sync", "cp.async.cg", "griddepcontrol")
    )


if __name__ == "__main__":
    for launch in everything():
        kernel, signature, constants, warps, stages = launch
        told = {n: v for n, v in constants.items() if n in ("SIZE", "ROWS", "TILE", "WINDOW")}
        kinds = sorted({kind for kind in signature.values() if kind.startswith("*")})
        print(kernel.__name__, *kinds, told, f"warps {warps}, stages {stages}:", flush=True)
        print("   ", resources(compiled(*launch)), flush=True)
