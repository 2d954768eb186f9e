"""`make bench-engine`: the engine alone, in this process, against the machine's limits."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.core.host_info import as_line, describe_machine
from bench.core.markdown_tables import table
from bench.core.model_135m import ModelShape, make
from bench.core.results import RESULTS, Figure, Series, figure, keep, series_of, value_of
from bench.core.statistics import Spread
from bench.core.tandem_config import load_engine
from bench.systems import accuracy, python_share
from bench.systems.in_process import EngineBench, pool_tokens
from bench.systems.roofline import Meter, Roofline
from cluster.work_progress import WorkProgress

PROMPT, NEW = 128, 64
BATCHES = (1, 8, 32)
LONG_BATCH, LONG_CONTEXT = 32, 1000
CHUNKS = (256, 512, 1024)
PREFILL_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One line of the table: the measurement, tokens per second, and the limit."""

    name: str
    rate: Spread
    limit: float

    def cells(self) -> list[str]:
        """The cells of the table."""
        share = f"{self.rate.median / self.limit:.0%}"
        return [self.name, self.rate.show(), f"{self.limit:,.0f}", share]


@dataclass(frozen=True, slots=True)
class EngineReport:
    """All measurements of the engine."""

    rows: list[EngineRow]
    limits: Roofline
    share: python_share.PythonShare
    errors: accuracy.Errors
    forward: str

    def as_series(self, machine: dict[str, str]) -> Series:
        """The series of rates, limits, Python's share and logit errors."""
        figures: dict[str, Figure | None] = {}
        for row in self.rows:
            rates, share = row.rate.values, row.rate.median / row.limit
            figures[f"{row.name}: rate"] = figure(rates, "tokens/s", "repeats")
            of_limit = [rate / row.limit for rate in rates]
            figures[f"{row.name}: of the limit"] = value_of(
                share, "of 1", len(rates), "repeats", of_limit
            )
        figures["limit: memory read"] = _limit(self.limits.bandwidth, "GB/s")
        figures["limit: large product"] = _limit(self.limits.products, "GFLOP/s")
        low, high = self.share.low, self.share.high
        figures["Python: share of a step"] = figure([low, high], "of 1", "estimates")
        ratio = figure([self.errors.ratio], "x", "comparisons")
        figures["logit error: over transformers"] = ratio
        return series_of(
            "engine",
            machine,
            {"threads": torch.get_num_threads(), "forward": self.forward},
            figures,
        )

    def markdown(self, machine: dict[str, str]) -> str:
        """The table, with the limits, shares and errors below it."""
        limits, share, errors = self.limits, self.share, self.errors
        low, high = sorted((share.low, share.high))  # noise can be larger than their difference
        header = ["tokens/s, median [range]", "Tandem's engine", "limit", "of it"]
        return f"""{table(header, [row.cells() for row in self.rows])}

- Limits: memory is read at {_per_second(limits.bandwidth, "GB")}, a large random product \
runs at {_per_second(limits.products, "GFLOP")}; the best counts.
- Python is {low:.1%} to {high:.1%} of a batch-1 step of {share.step:.2f} ms.
- Mean logit error against float64: {errors.ours:.4f}, that of `transformers` in bfloat16 \
{errors.transformers:.4f}, a ratio of {errors.ratio:.3f}; the best token is the same in \
{errors.ours_agree:.1%} and {errors.transformers_agree:.1%}.
- {self.forward} forward, {torch.get_num_threads()} threads; {as_line(machine)}
"""


def decode_rates(bench: EngineBench, batch: int, repeats: int) -> Spread:
    """Decode rates of a batch whose prompts were just computed."""
    bench.decode_rate(batch, PROMPT, 8, "warm")
    names = [f"{batch}/{repeat}" for repeat in range(repeats)]
    return Spread(tuple(bench.decode_rate(batch, PROMPT, NEW, name) for name in names))


def long_rates(bench: EngineBench, repeats: int) -> Spread:
    """Decode rates of a batch with long contexts, whose prompts are computed once."""
    sequences = bench.sequences(LONG_BATCH, LONG_CONTEXT, NEW, "long")
    for sequence in sequences:
        bench.prefill(sequence)
    rates = []
    for _ in range(repeats):
        for sequence in sequences:
            sequence.computed = LONG_CONTEXT
            del sequence.tokens[LONG_CONTEXT + 1 :]
        rates.append(LONG_BATCH * (NEW - 1) / bench.decode(sequences, NEW - 1))
    return Spread(tuple(rates))


def prefill_rates(bench: EngineBench, chunk: int, repeats: int) -> Spread:
    """Prefill rates of one long prompt at a time."""
    bench.prefill_rate(PREFILL_TOKENS, chunk, "warm")
    names = [f"prefill/{repeat}" for repeat in range(repeats)]
    return Spread(tuple(bench.prefill_rate(PREFILL_TOKENS, chunk, name) for name in names))


def measure(folder: Path, repeats: int) -> EngineReport:
    """Measure everything, the machine itself before and after every line."""
    engine = load_engine(folder, pool_tokens(LONG_BATCH, LONG_CONTEXT, NEW))
    bench, meter = EngineBench(engine), Meter()
    meter.sample()
    decoded, prefilled = dict[int, Spread](), dict[int, Spread]()
    with WorkProgress("engine", pieces := len(BATCHES) + len(CHUNKS) + 3) as progress:
        for batch in BATCHES:
            progress.at(len(decoded), f"decode, batch {batch}")
            decoded[batch] = decode_rates(bench, batch, repeats)
            meter.sample()
        progress.at(len(decoded), f"decode, {LONG_CONTEXT:,} tokens")
        long = long_rates(bench, repeats)
        meter.sample()
        for chunk in CHUNKS:
            progress.at(len(decoded) + 1 + len(prefilled), f"prefill, chunks of {chunk:,}")
            prefilled[chunk] = prefill_rates(bench, chunk, repeats)
            meter.sample()
        progress.at(pieces - 2, "Python's share")
        share = python_share.measure(bench, PROMPT)
        progress.at(pieces - 1, "accuracy")
        errors = accuracy.compare(folder, engine)
    limits, shape = meter.limits(), ModelShape()
    rows = [
        EngineRow(f"decode, batch {batch}", rate, limits.decode(shape, batch, PROMPT + NEW / 2))
        for batch, rate in decoded.items()
    ]
    name = f"decode, batch {LONG_BATCH} at {LONG_CONTEXT:,} tokens"
    rows.append(EngineRow(name, long, limits.decode(shape, LONG_BATCH, LONG_CONTEXT + NEW / 2)))
    rows += [
        EngineRow(f"prefill, chunks of {chunk:,}", rate, limits.prefill(shape, PREFILL_TOKENS))
        for chunk, rate in prefilled.items()
    ]
    return EngineReport(rows, limits, share, errors, engine.forward_name)


def _limit(samples: Spread, unit: str) -> Figure:
    """The figure of a limit, of which the best sample counts."""
    scaled = [value / 1e9 for value in samples.values]
    return value_of(max(scaled), unit, len(scaled), "samples", scaled)


def _per_second(spread: Spread, unit: str) -> str:
    scaled = Spread(tuple(value / 1e9 for value in spread.values))
    return f"{scaled.high:,.0f} {unit}/s (median {scaled.median:,.0f}, at worst {scaled.low:,.0f})"


def main() -> None:
    """Make the model where it is missing, measure, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    report = measure(make(options.cache / "model-135m"), options.repeats)
    machine = describe_machine()
    keep(options.results, "engine", machine, [report.as_series(machine)])
    print(report.markdown(machine))


if __name__ == "__main__":
    main()
