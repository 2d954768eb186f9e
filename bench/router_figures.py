"""What is measured of a router, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from bench.tables import table


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
class FirstToken:
    """Time to the first token, in milliseconds, with so many streams open beside it."""

    door: str
    streams: int
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    one_hop_p50_ms: float
    one_hop_p99_ms: float


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
            f"{one.p50_ms:.2f} / {one.p99_ms:.2f}",
            f"{one.one_hop_p50_ms:.2f} / {one.one_hop_p99_ms:.2f}",
            f"{one.p50_ms - one.one_hop_p50_ms:.2f} / {one.p99_ms - one.one_hop_p99_ms:.2f}",
        ]
        for one in ttft
    ]
    columns = ("first token, ms, p50 / p99", "through the router", "one hop without it", "added")
    return f"{table(header, rows)}\n\n{table(columns, firsts)}"
