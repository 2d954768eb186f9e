"""`make bench-engine`: the engine alone, in this process, against the machine's limits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench import accuracy, limits, python_share
from bench.in_process import Bench, pool_tokens
from bench.machine import as_line, describe_machine
from bench.rates import Spread
from bench.setting import load_engine
from bench.shape import Shape, make
from bench.tables import put, table

RESULTS = Path("bench/results")
DOCUMENT = Path("docs/performance.md")
PROMPT, NEW = 128, 64
BATCHES = (1, 8, 32)
LONG_BATCH, LONG_CONTEXT = 32, 1000
CHUNKS = (256, 512, 1024)
PREFILL_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured, tokens per second, and the limit."""

    name: str
    rate: Spread
    limit: float

    def cells(self) -> list[str]:
        """For the table."""
        share = f"{self.rate.median / self.limit:.0%}"
        return [self.name, self.rate.show(), f"{self.limit:,.0f}", share]


def decode_rows(bench: Bench, machine: limits.Limits, repeats: int) -> list[Row]:
    """Batches whose prompts were just computed."""
    rows = []
    for batch in BATCHES:
        bench.decode_rate(batch, PROMPT, 8, "warm")
        rates = [bench.decode_rate(batch, PROMPT, NEW, f"{batch}/{r}") for r in range(repeats)]
        limit = machine.decode(Shape(), batch, PROMPT + NEW / 2)
        rows.append(Row(f"decode, batch {batch}", Spread(tuple(rates)), limit))
    return rows


def long_row(bench: Bench, machine: limits.Limits, repeats: int) -> Row:
    """A batch with long contexts; the prompts are computed once and decoded from anew."""
    sequences = bench.sequences(LONG_BATCH, LONG_CONTEXT, NEW, "long")
    for sequence in sequences:
        bench.prefill(sequence)
    rates = []
    for _ in range(repeats):
        for sequence in sequences:
            sequence.computed = LONG_CONTEXT
            del sequence.tokens[LONG_CONTEXT + 1 :]
        rates.append(LONG_BATCH * (NEW - 1) / bench.decode(sequences, NEW - 1))
    limit = machine.decode(Shape(), LONG_BATCH, LONG_CONTEXT + NEW / 2)
    name = f"decode, batch {LONG_BATCH} at {LONG_CONTEXT:,} tokens"
    return Row(name, Spread(tuple(rates)), limit)


def prefill_rows(bench: Bench, machine: limits.Limits, repeats: int) -> list[Row]:
    """One long prompt at a time, in chunks of several sizes."""
    rows = []
    for chunk in CHUNKS:
        bench.prefill_rate(PREFILL_TOKENS, chunk, "warm")
        names = [f"prefill/{repeat}" for repeat in range(repeats)]
        rates = [bench.prefill_rate(PREFILL_TOKENS, chunk, name) for name in names]
        limit = machine.prefill(Shape(), PREFILL_TOKENS)
        rows.append(Row(f"prefill, chunks of {chunk:,}", Spread(tuple(rates)), limit))
    return rows


def report(folder: Path, repeats: int) -> tuple[dict[str, object], str]:
    """Measure everything; as data, and as Markdown."""
    engine = load_engine(folder, pool_tokens(LONG_BATCH, LONG_CONTEXT, NEW))
    bench, machine = Bench(engine), limits.measure()
    rows = [
        *decode_rows(bench, machine, repeats),
        long_row(bench, machine, repeats),
        *prefill_rows(bench, machine, repeats),
    ]
    share = python_share.measure(bench, PROMPT)
    errors = accuracy.compare(folder, engine)
    data: dict[str, object] = {
        "machine": describe_machine(),
        "threads": torch.get_num_threads(),
        "forward": engine.forward_name,
        "limits": asdict(machine),
        "rows": [{**asdict(row), "median": row.rate.median} for row in rows],
        "python_share": {"low": share.low, "high": share.high, **asdict(share)},
        "logits": {"ratio": errors.ratio, **asdict(errors)},
    }
    return data, _markdown(data, rows, machine, share, errors)


def _markdown(
    data: dict[str, object],
    rows: list[Row],
    machine: limits.Limits,
    share: python_share.Share,
    errors: accuracy.Errors,
) -> str:
    header = ["tokens/s, median [range]", "Tandem's engine", "limit", "of it"]
    described = describe_machine()
    return f"""{table(header, [row.cells() for row in rows])}

- Limits: memory is read at {machine.bandwidth.high / 1e9:.1f} GB/s, a large random bfloat16 \
product runs at {machine.products.high / 1e9:,.0f} GFLOP/s (best of {len(machine.products.values)}).
- Python is {share.low:.1%} to {share.high:.1%} of a batch-1 step of {share.step:.2f} ms.
- Mean logit error against float64: {errors.ours:.4f}, that of `transformers` in bfloat16 \
{errors.transformers:.4f}, a ratio of {errors.ratio:.3f}; the best token is the same in \
{errors.ours_agree:.1%} and {errors.transformers_agree:.1%}.
- {data["forward"]} forward, {data["threads"]} threads; {as_line(described)}
"""


def main() -> None:
    """Make the model where it is missing, measure, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    data, text = report(make(options.cache / "model-135m"), options.repeats)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "engine.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.results / "engine.md").write_text(text)
    if options.results == RESULTS:
        put(DOCUMENT, "engine", text)
    print(text)


if __name__ == "__main__":
    main()
