"""`make bench-guided`: streams that follow JSON schemas beside free streams, by turns.

Three batches take turns of some steps in one engine: the streams of one follow schemas, those of
another are free, and those of the third are free in an engine that cannot make masks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.model_135m import ModelShape, make
from bench.core.results import RESAMPLED, Figure, keep, only_measured, series_of, value_of
from bench.core.statistics import between, percentile
from bench.core.tandem_config import load_engine
from bench.engine.guided_answers import grammars, new_compiler
from bench.systems.in_process import EngineBench, pool_tokens
from cluster.work_progress import WorkProgress
from engine.cpu.core_sharing import CoreSharing
from engine.grammar.masks import MaskMaker
from engine.runtime.engine import Engine
from engine.runtime.forward_pass import Pass
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

GUIDED, FREE, MASKLESS = "guided", "free", "free, without masks"
_PROMPT = 128
_MS = 1000.0
_WARM_STEPS = 4
_TOKENS = 2**20
_WAYS: Mapping[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=_TOKENS, seed=0),
    "sampled": SamplingParams(temperature=0.8, max_tokens=_TOKENS, seed=0),
}


class EngineWithoutMasks(Engine):
    """An engine that looks for no grammar, as one before there were any."""

    def begin(self, spans: list[Span], stored: Callable[[], None] | None = None) -> Pass:
        """See `Engine.begin`."""
        return Pass(self.runner, self.cache, spans, self._cores, _NoMasks(0), self._draw, stored)


class _NoMasks(MaskMaker):
    def begin(self, sequences: object) -> None:
        """Begin nothing."""


@dataclass(slots=True)
class TimedStreams:
    """A batch, its engine, and the seconds of each step, turn by turn."""

    bench: EngineBench
    sequences: list[Sequence]
    turns: list[list[float]] = field(default_factory=list)

    def restart(self, sampling: SamplingParams) -> None:
        """Begin again behind the first token."""
        self.turns.clear()
        for sequence in self.sequences:
            sequence.computed = _PROMPT
            del sequence.tokens[_PROMPT + 1 :]
            sequence.sampling = sampling

    @property
    def means_ms(self) -> list[float]:
        """The mean time of a step in each turn."""
        return [_MS * fmean(turn) for turn in self.turns]

    def at_ms(self, share: float) -> float:
        """That percentile of all steps."""
        return _MS * percentile([step for turn in self.turns for step in turn], share)


def measure(
    folder: Path, shape: ModelShape, streams: int, turns: int, steps: int
) -> dict[str, Figure]:
    """Measure so many turns of each batch; greedy and sampled one after another."""
    batches = _batches(folder, shape, streams, turns * steps + _WARM_STEPS)
    compiler = new_compiler(shape.vocabulary)
    compiled = [compiler.compile(grammar) for grammar in grammars()]
    found: dict[str, Figure | None] = {}
    with WorkProgress("guided", len(_WAYS) * turns) as progress:
        for done, (way, sampling) in enumerate(_WAYS.items()):
            for name, batch in batches.items():
                for index, sequence in enumerate(batch.sequences):
                    guided = name == GUIDED
                    sequence.matcher = compiled[index % len(compiled)].matcher() if guided else None
                if not batch.sequences[0].computed:
                    for sequence in batch.sequences:
                        batch.bench.prefill(sequence)
                batch.restart(sampling)
                batch.bench.decode(batch.sequences, _WARM_STEPS)
            for turn in range(turns):
                progress.at(done * turns + turn, way)
                # Each batch is the first, the second and the last equally often.
                order = [*batches.values()]
                for batch in order[turn % 3 :] + order[: turn % 3]:
                    batch.turns.append(batch.bench.step_times(batch.sequences, steps))
            found |= _figures(way, batches)
    return only_measured(found)


def _batches(folder: Path, shape: ModelShape, streams: int, new: int) -> dict[str, TimedStreams]:
    """The three batches, in two engines around the same weights and cache."""
    loaded = load_engine(folder, 3 * pool_tokens(streams, _PROMPT, new))
    cores = CoreSharing(2 * (shape.layer_parameters + shape.head_parameters))
    parts = loaded.description, loaded.runner, loaded.cache
    engine = EngineBench(Engine(*parts, cores=cores))
    maskless = EngineBench(EngineWithoutMasks(*parts, cores=cores))
    batches, block = {}, 0
    for name, bench in ((GUIDED, engine), (FREE, engine), (MASKLESS, maskless)):
        sequences = bench.sequences(streams, _PROMPT, new, "guided", block)
        block += sum(len(sequence.blocks) for sequence in sequences)
        batches[name] = TimedStreams(bench, sequences)
    return batches


def _figures(way: str, batches: Mapping[str, TimedStreams]) -> dict[str, Figure | None]:
    found: dict[str, Figure | None] = {}
    for name, batch in batches.items():
        found[f"{way}: token gap, {name}"] = _median_of(batch.means_ms, "ms")
    free = batches[FREE]
    for over, one, under in (
        ("guided over free", batches[GUIDED], free),
        ("free over without masks", free, batches[MASKLESS]),
    ):
        ratios = [a / b for a, b in zip(one.means_ms, under.means_ms, strict=True)]
        found[f"{way}: {over}"] = _median_of(ratios, "x")
        p99 = one.at_ms(0.99) / under.at_ms(0.99)
        found[f"{way}: {over}, p99"] = value_of(p99, "x", sum(map(len, one.turns)), "steps")
    return found


def _median_of(values: list[float], unit: str) -> Figure:
    return value_of(median(values), unit, len(values), "turns", between(values), RESAMPLED)


def main() -> None:
    """Make the model where it is missing, measure, print, and keep the figures where asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--turns", type=int, default=144, help="of each batch")
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    options = parser.parse_args()
    shape = ModelShape()
    folder = make(options.cache / "model-135m", shape)
    found = measure(folder, shape, options.streams, options.turns, options.steps)
    machine = describe_machine()
    rows = [
        [name, f"{one.value:.3f}", f"{one.low:.3f} to {one.high:.3f}" if one.low else "", one.unit]
        for name, one in found.items()
    ]
    print(f"{now()}; {as_line(machine)}\n\n{table(('figure', 'median', '95 %', 'unit'), rows)}")
    if options.results:
        series = series_of(
            "guided",
            machine,
            {"streams": options.streams, "turns": options.turns, "steps": options.steps},
            found,
        )
        keep(options.results, "guided", machine, [series])


if __name__ == "__main__":
    main()
