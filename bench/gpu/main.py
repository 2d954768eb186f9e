"""An 8 B Llama shape on one GPU: steps, passes, a burst, channels, memory, products.

`python -m bench.gpu.main` (`make bench-gpu`). Weights are random and made on the device. The
sections come in the order of `SECTIONS`, each within its budget, and each row is written at once.
Then come the limits of the device, measured in the same run: a read of memory, and a large product.
Steps, passes and kernels are fractions of these limits.

`--dry` runs all of it on a CPU with tiny shapes, Gloo in the place of NCCL, and the memory of the
process in the place of the device's. Its rows are no measurements, and go to a file of their own.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from bench.gpu import few_rows
from bench.gpu import kernels as gpu_kernels
from bench.gpu.bench_engine import bench_engine, operations
from bench.gpu.clock import GpuReport, bandwidth, describe, matrix_rate
from bench.gpu.harness import GpuBench
from bench.gpu.model import BLOCK, FULL, TINY, GpuScale, cache, decoder, packed, spans
from bench.gpu.section import Section, run_section
from bench.gpu.sections import (
    device_memory,
    pool_burst,
    process_pair,
    prompt_passes,
    step_anatomy,
)
from cluster.work_progress import tracked
from engine.model.cuda_graphs import DecodeReplays
from engine.model.fused_forward import CompactRunner
from engine.model.packed_batch import pack
from engine.model.runner import whole
from engine.model.trials.device_timer import device_seconds, host_seconds
from engine.types.sequence import Span

# In this order; each with the seconds that it may take, together less than eight minutes. The first
# one makes the engine, so kernels are compiled in it.
SECTIONS = (
    Section("steps", step_anatomy.run, 170.0),
    Section("passes", prompt_passes.run, 40.0),
    Section("burst", pool_burst.run, 50.0),
    Section("channels", process_pair.run, 130.0),
    Section("memory", device_memory.run, 30.0),
    Section("products", few_rows.rows, 20.0),
)
_RAW = Path(".bench") / "gpu.json"
_TESTS = (
    "gpu",
    "engine/model/test_ops.py",
    "engine/model/test_forward_selection.py",
    "engine/model/test_attention_flashinfer.py",
    "bench/gpu/test_varlen_attention.py",
)


def main(arguments: list[str] | None = None) -> int:
    """Measure everything that the time allows; returns 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="bench.gpu.main", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--output", type=Path, help="the folder of the file of rows")
    parser.add_argument("--seconds", type=float, default=480, help="begin nothing after that")
    parser.add_argument("--commit", help="what is measured, where git cannot say")
    parser.add_argument("--tests", action="store_true", help="first the tests of the operations")
    parser.add_argument("--only", nargs="*", help="names of sections; without it, all")
    options = parser.parse_args(arguments)
    if not options.dry and not torch.cuda.is_available():
        print("bench-gpu needs a CUDA device, and there is none here", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # A line for each request.
    logging.getLogger("prefill_pool").setLevel(logging.WARNING)
    device = torch.device("cpu" if options.dry else "cuda")
    path = _path(options.output, options.dry)
    head = describe(device)
    head["commit"] = head["commit"] or options.commit
    head["dry"] = options.dry
    report = GpuReport(path, head, options.seconds)
    if options.tests:
        _run_tests(report)
    chosen = [one for one in SECTIONS if options.only is None or one.name in options.only]
    for section in tracked("sections", chosen, lambda section: section.name):
        run_section(section, device, dry=options.dry, into=report)
    bench_engine.cache_clear()
    if options.only is None or "limits" in options.only:
        _release(device)
        with torch.inference_mode():
            _measure(TINY if options.dry else FULL, device, report)
        if not options.dry:
            _keep(report)
    print(f"\nwritten to {path}")
    return 0


def _path(output: Path | None, dry: bool) -> Path:
    """The file of the rows; a dry run has a name of its own, so that it replaces no result."""
    folder = output or (Path(tempfile.mkdtemp()) if dry else _RAW.parent)
    name = "gpu-dry.json" if dry else _RAW.name
    return folder / name


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _keep(report: GpuReport) -> None:
    """Keep the figures, where the machine has what the files of results need."""
    try:
        from bench.core.results import RESULTS, keep
        from bench.gpu.figures import as_series, machine_of
    except ImportError as missing:
        print(f"the figures are in the file of rows alone: {missing}", file=sys.stderr)
        return
    keep(RESULTS, "gpu", machine_of(report.head), [as_series(report.head, report.sections)])


def _run_tests(report: GpuReport) -> None:
    """The contract on this device, on several processes where pytest can: kernels compile long."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not C++", "-c", "tests/gpu/pytest.ini"]
    command += [f"tests/{test}" for test in _TESTS]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", "8"]
    root = Path(__file__).resolve().parents[2]
    try:
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
        told, code = ended.stdout[-3000:], ended.returncode
    except subprocess.TimeoutExpired as late:
        told, code = str(late.stdout)[-3000:], -1
    print(told)
    report.note(tests={"exit": code, "end": told.strip().rsplit("\n", 1)[-1]})


def _measure(scale: GpuScale, device: torch.device, report: GpuReport) -> None:
    speeds = bandwidth(scale, device)
    rate = matrix_rate(scale, device)
    report.note(read_gb_s=speeds["read"] / 1e9, copy_gb_s=speeds["copy"] / 1e9)
    report.note(matrix_tflop_s=rate / 1e12)
    model = decoder(scale, device)
    ops = operations(model, device)
    report.note(operations=ops.name)
    # The limit of a kernel is the faster of both.
    read = max(speeds.values())
    runner = CompactRunner(model, ops)
    bench = GpuBench(scale, device, model, runner, ops, cache(scale, device), report, read, rate)
    sections: tuple[Callable[[GpuBench], None], ...] = (
        _decode,
        _prefill,
        gpu_kernels.products,
        gpu_kernels.fused,
        # Many variants that must be compiled: last, because time may run out.
        gpu_kernels.attention_decode,
        gpu_kernels.attention_prefill,
    )
    for section in sections:
        try:
            section(bench)
        except Exception as error:
            # A fault must not lose the rest of a run.
            traceback.print_exc()
            report.row("faults", section=section.__name__, error=str(error)[:500])


def _decode(bench: GpuBench) -> None:
    """Decode steps, eager and replayed: with packing and the greedy token on the host."""
    scale, runner = bench.scale, bench.runner
    width = -(-max(scale.contexts) // BLOCK)
    record = bench.recorder()
    replays = DecodeReplays(
        lambda batch: whole(runner.layers(batch)), bench.cache, width, record, scale.batches
    )
    for _ in replays.pieces():
        pass
    for context in scale.contexts:
        for batch in scale.batches:
            if bench.report.is_late:
                return
            step = spans(batch, context, 1, bench.cache)
            _decode_row(bench, replays, step, context)


def _decode_row(bench: GpuBench, replays: DecodeReplays, step: list[Span], context: int) -> None:
    scale, runner, batch = bench.scale, bench.runner, len(step)

    def eager() -> torch.Tensor:
        return whole(runner.layers(pack(step, bench.cache)))

    def replayed() -> torch.Tensor:
        logits = replays.logits(step)
        return eager() if logits is None else logits

    difference = (replayed().float() - eager().float()).abs().max().item()
    floor = scale.step_bytes(batch, context) / bench.read
    eager_s = host_seconds(lambda: eager().argmax(-1).tolist(), scale.repeats)
    replay_s = host_seconds(lambda: replayed().argmax(-1).tolist(), scale.repeats)
    device_s = device_seconds(replayed, bench.device, scale.repeats)
    bench.report.row(
        "decode",
        batch=batch,
        context=context,
        floor_ms=floor * 1e3,
        eager_ms=eager_s * 1e3,
        replay_ms=replay_s * 1e3,
        device_ms=device_s * 1e3,
        recorded=replays.logits(step) is not None,
        tokens_s=batch / replay_s,
        of_bandwidth=floor / replay_s,
        replay_less_eager=difference,
    )


def _prefill(bench: GpuBench) -> None:
    """Prompts whole, and in chunks."""
    scale = bench.scale
    for prompt in scale.prompts:
        for chunk in sorted({min(scale.chunk, prompt), prompt}):
            if bench.report.is_late:
                return
            batches = [
                packed(1, end, chunk, bench.cache) for end in range(chunk, prompt + 1, chunk)
            ]

            def run(batches=batches) -> None:  # type: ignore[no-untyped-def]
                for batch in batches:
                    whole(bench.runner.layers(batch))

            taken = device_seconds(run, bench.device, max(2, scale.repeats // 4))
            flops = 2 * scale.layer_weights * prompt + scale.layers * scale.attention_flops(prompt)
            bench.report.row(
                "prefill",
                prompt=prompt,
                chunk=chunk,
                ms=taken * 1e3,
                tokens_s=prompt / taken,
                of_matrix_rate=flops / taken / bench.rate,
            )


if __name__ == "__main__":
    sys.exit(main())
