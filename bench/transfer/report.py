"""The measurements of moving KV: tables for the terminal, and figures for the results. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, figure, series_of, value_of
from bench.core.statistics import Spread
from bench.transfer.floor import BUFFERS, median_parts
from bench.transfer.hand_over import CHUNK, ROUNDS, SLICE_S, TOKENS_PER_S, HandOverLoad
from bench.transfer.shape import BORROWED

RAW_ROUNDS = 31
_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """Bytes per second of one transport's channel, and of the plain copy it is compared with."""

    transport: str
    rate: Spread
    raw: Spread
    raw_name: str

    @property
    def share(self) -> float:
        """The channel's rate as a part of the plain copy's."""
        return self.rate.median / self.raw.median


def as_markdown(
    channels: Sequence[ChannelFigures], hand_overs: Sequence[HandOverLoad], machine: str
) -> str:
    """Three tables, with notes below them."""
    header = ["data channel alone, GB/s, median [range]", "channel", "plain copy", "of it"]
    rows = [
        [
            one.transport,
            _gigabytes(one.rate).show(2),
            f"{_gigabytes(one.raw).show(2)} {one.raw_name}",
            f"{one.share:.0%}",
        ]
        for one in channels
    ]
    notes = (
        f"- Frames of up to 8 MiB between two processes; {BUFFERS} buffers on each side of a "
        "channel and of a plain copy.\n"
        f"- Medians of rounds in which each thing has its turn: {RAW_ROUNDS} for channels and "
        f"plain copies, {ROUNDS} for a hand-over, its parts and its link.\n"
        f"- {parts_alone(hand_overs)}\n"
        f"- The computing of a prompt is played by waiting, {CHUNK} tokens at a time at "
        f"{TOKENS_PER_S:,} tokens/s, layers reported every {1000 * SLICE_S:.0f} ms.\n"
        f"- {machine}"
    )
    tables = (table(header, rows), _complete_table(hand_overs), _early_table(hand_overs))
    return "\n\n".join((*tables, notes)) + "\n"


def as_series(
    channels: Sequence[ChannelFigures],
    hand_overs: Sequence[HandOverLoad],
    machine: dict[str, str],
) -> Series:
    """The series of rates, times and their floors."""
    figures: dict[str, Figure | None] = {}
    for one in channels:
        plain = f"{one.transport}: plain copy ({one.raw_name})"
        figures[f"{one.transport}: channel"] = figure(_gigabytes(one.rate).values, "GB/s", "rounds")
        figures[plain] = figure(_gigabytes(one.raw).values, "GB/s", "rounds")
        share = value_of(one.share, "of 1", len(one.rate.values), "rounds")
        figures[f"{one.transport}: channel over plain copy"] = share
    for each in hand_overs:
        times, unit = each.seconds.values, "of 1" if each.early else "x"
        of_floor = [seconds / each.floor_s for seconds in times]
        what = "exposed" if each.early else "hand-over"
        figures[f"{each.title}: {what}"] = figure([1000 * s for s in times], "ms", "rounds")
        figures[f"{each.title}: of the floor"] = figure(of_floor, unit, "rounds")
    return series_of("transfer", machine, {}, figures)


def parts_alone(hand_overs: Sequence[HandOverLoad]) -> str:
    """The rate of each part alone, for the longest prompt."""
    framed = [each for each in hand_overs if each.transport != BORROWED]
    parts = median_parts(max(framed, key=lambda each: each.tokens).parts)

    def rate(seconds: float) -> str:
        return f"{parts.bytes / seconds / _GIGABYTE:.1f} GB/s"

    return (
        f"By themselves: gather {rate(parts.gather_s)}, checksum {rate(parts.checksum_s)}, "
        f"scatter {rate(parts.scatter_s)}."
    )


def _complete_table(hand_overs: Sequence[HandOverLoad]) -> str:
    head = ["hand-over", "MB", "ms, median [range]", "GB/s", "floor ms", "of the floor"]
    rows = [
        [
            *_cells(each),
            f"{each.parts[0].bytes / each.seconds.median / _GIGABYTE:.2f}",
            f"{1000 * each.floor_s:,.1f}",
            f"{each.of_floor:.2f}",
        ]
        for each in hand_overs
        if not each.early
    ]
    return table(head, rows)


def _early_table(hand_overs: Sequence[HandOverLoad]) -> str:
    head = ["while it is computed", "MB", "exposed ms, median [range]", "floor ms", "of the floor"]
    rows = [
        [*_cells(each), f"{1000 * each.floor_s:,.1f}", f"{each.of_floor:.0%}"]
        for each in hand_overs
        if each.early
    ]
    return table(head, rows)


def _cells(each: HandOverLoad) -> list[str]:
    took = Spread(tuple(1000 * seconds for seconds in each.seconds.values))
    return [each.title, f"{each.parts[0].bytes / 1e6:,.1f}", took.show(1)]


def _gigabytes(spread: Spread) -> Spread:
    return Spread(tuple(value / _GIGABYTE for value in spread.values))
