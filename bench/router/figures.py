"""The figures of a router, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.markdown_tables import table
from bench.core.results import Figure, Series, series_of, value_of

_TITLES = {"grpc": "gRPC", "http": "HTTP"}


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run at full speed; CPU in milliseconds for each message that reached a client."""

    front_end: str
    tokens_each: int
    messages_per_s: float
    tokens_per_s: float
    router_ms: float
    decode_ms: float
    client_ms: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of many times, in milliseconds."""

    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        """Both percentiles, as a table shows them."""
        return f"{self.p50_ms:.2f} / {self.p99_ms:.2f}"

    def over(self, other: Percentiles) -> Percentiles:
        """The difference to other percentiles."""
        return Percentiles(self.p50_ms - other.p50_ms, self.p99_ms - other.p99_ms)


@dataclass(frozen=True, slots=True)
class FirstTokenRow:
    """Time to the first token beside open `streams`, measured `count` times by each way.

    `routed` is through the router, and `direct` from the replica's own front end. `hop` is a gRPC
    call that the replica answers itself.
    """

    front_end: str
    streams: int
    messages_per_s: float
    count: int
    routed: Percentiles
    direct: Percentiles
    hop: Percentiles


def report(throughput: list[Throughput], ttft: list[FirstTokenRow]) -> str:
    """Throughput and first tokens as tables in Markdown."""
    rows = [
        [
            f"{one.front_end}, {one.tokens_each} a message",
            f"{one.messages_per_s:,.0f}",
            f"{one.tokens_per_s:,.0f}",
            *(f"{ms:.3f}" for ms in (one.router_ms, one.decode_ms, one.client_ms)),
        ]
        for one in throughput
    ]
    header = (
        "front end",
        "messages/s",
        "tokens/s",
        "router ms/message",
        "decode replica",
        "client",
    )
    firsts = [
        [
            f"{one.front_end}, {one.streams} open, {one.messages_per_s:,.0f} messages/s",
            str(one.routed),
            str(one.direct),
            str(one.routed.over(one.direct)),
            str(one.hop),
            str(one.count),
        ]
        for one in ttft
    ]
    columns = (
        "first token, ms, p50 / p99",
        "through the router",
        "the replica's own front end",
        "added",
        "bare hop",
        "times",
    )
    return f"{table(header, rows)}\n\n{table(columns, firsts)}"


def as_series(
    throughput: Sequence[Throughput],
    first_tokens: Sequence[FirstTokenRow],
    machine: dict[str, str],
    conditions: dict[str, str | int | float],
) -> Series:
    """The series of one run."""
    figures: dict[str, Figure | None] = {}
    for one in throughput:
        each = f"{one.tokens_each} token" + ("s" if one.tokens_each > 1 else "")
        title = f"{_TITLES[one.front_end]}, {each} a message"
        figures[f"{title}: messages"] = value_of(one.messages_per_s, "messages/s", 1, "runs")
        figures[f"{title}: tokens"] = value_of(one.tokens_per_s, "tokens/s", 1, "runs")
        figures[f"{title}: router CPU"] = value_of(one.router_ms, "ms/message", 1, "runs")
    for first in first_tokens:
        title = f"{_TITLES[first.front_end]}, {first.streams} streams open"
        added, n = first.routed.over(first.direct), first.count
        for what, times in (("added to TTFT", added), ("bare hop", first.hop)):
            for point, value in (("p50", times.p50_ms), ("p99", times.p99_ms)):
                figures[f"{title}: {what} {point}"] = value_of(value, "ms", n, "requests")
    return series_of("router", machine, conditions, figures)
