"""What is measured of a router, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.markdown_tables import table


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run at full speed; CPU in milliseconds for each message that reached a client."""

    door: str
    tokens_each: int
    messages_per_s: float
    tokens_per_s: float
    router_ms: float
    decode_ms: float
    client_ms: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of many times, in milliseconds."""

    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        """Both, as a table shows them."""
        return f"{self.p50_ms:.2f} / {self.p99_ms:.2f}"

    def over(self, other: Percentiles) -> Percentiles:
        """How much more these are."""
        return Percentiles(self.p50_ms - other.p50_ms, self.p99_ms - other.p99_ms)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time to the first token with so many streams open beside it, `count` times by each way.

    `routed` through the router, `direct` by the same client from the replica's own door; `hop` is a
    call over gRPC that the replica answers itself.
    """

    door: str
    streams: int
    messages_per_s: float
    count: int
    routed: Percentiles
    direct: Percentiles
    hop: Percentiles


def report(throughput: list[Throughput], ttft: list[FirstToken]) -> str:
    """Both as tables in Markdown."""
    rows = [
        [
            f"{one.door}, {one.tokens_each} a message",
            f"{one.messages_per_s:,.0f}",
            f"{one.tokens_per_s:,.0f}",
            *(f"{ms:.3f}" for ms in (one.router_ms, one.decode_ms, one.client_ms)),
        ]
        for one in throughput
    ]
    header = ("door", "messages/s", "tokens/s", "router ms/message", "decode replica", "client")
    firsts = [
        [
            f"{one.door}, {one.streams} open, {one.messages_per_s:,.0f} messages/s",
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
        "the replica's own door",
        "added",
        "bare hop",
        "times",
    )
    return f"{table(header, rows)}\n\n{table(columns, firsts)}"
