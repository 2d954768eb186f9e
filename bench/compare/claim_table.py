"""Common claims about serving, their measurements, and the table of both. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.core.markdown_tables import table
from bench.core.results import Series, figure, series_of
from bench.core.statistics import Spread

RUN = 'make bench-claims ARGS="--only {}"'
UNMEASURED = "not measured yet"

SERVING, COALESCED, CHUNKS = "serving", "coalesced", "chunks"
STATIC, SPECULATIVE = "static", "speculative"
# Each mode is a part of the run, with a server of its own, and a line in tokens per second.
MODE_KEYS = ("serial", "window-10", "window-50", "continuous")

# Dollars for an hour of the machine: an example, not the price of a provider.
PRICE_PER_HOUR = 0.10
_RATE = "tokens/s"


@dataclass(frozen=True, slots=True)
class Claim:
    """A line: the claim, its amount, how it is measured, and the part of the run."""

    key: str
    text: str
    claimed: str
    how: str
    part: str
    unit: str = "x"


CLAIMS = (
    Claim(
        "coalesced",
        "streams whose tokens are sent together give more throughput than one message a token",
        "1.10 to 1.25 x",
        "decode rate of 32 streams of 160 tokens, `flush` as it comes over `stream: tokens`,"
        " pairwise by round",
        COALESCED,
    ),
    Claim(
        "batch",
        "a batch of 32 gives more tokens/s than a batch of 1",
        "6 to 10 x",
        "decode rate of 32 streams over that of 1",
        SERVING,
    ),
    Claim(
        "token-time",
        "a token takes longer in a batch than alone",
        "1.1 to 1.3 x",
        "time between a stream's tokens, 8 streams over 1",
        SERVING,
    ),
    Claim(
        "repeated",
        "a repeated prompt is faster from the cache",
        "2 to 3 x",
        "time to the first token of 1,024 tokens, the first time over the second",
        SERVING,
    ),
    Claim(
        "halved",
        "half a prompt's length means an earlier first token",
        "no figure",
        "time to the first token alone, 1,024 tokens over 512",
        SERVING,
    ),
    Claim(
        "whole",
        "answers that are not streamed, in batches of 8 to 16 with long outputs, give more"
        " throughput",
        "1.5 to 3 x",
        "16 answers of 256 tokens at once, whole over streamed, tokens/s from first asked to all"
        " there",
        SERVING,
    ),
    Claim(
        "whole-first",
        "and their first token is later",
        "200 to 800 ms",
        "of the same 16, the median time until anything is there, whole less streamed",
        SERVING,
        "ms",
    ),
    Claim(
        "one-by-one",
        "continuous batching gives more tokens/s than one request after another",
        "no figure",
        "8 requests of 128 + 64 tokens, all at once over one by one",
        SERVING,
    ),
    Claim(
        "chunks",
        "prefill in chunks keeps the others' ITL short",
        "no figure",
        "ITL p95 of four running streams while four prompts of 1,024 tokens arrive, one pool,"
        " `prefill.chunk_tokens` 4096 over 256, pairwise by round",
        CHUNKS,
    ),
    Claim(
        STATIC,
        "continuous over static batching at p95",
        "2.1 x",
        "seconds from due to last token at p95, Poisson at 2/s for 30 s, prompts of 64 to 512"
        " tokens, answers of 16 to 128, one pool, `decode.batching` static over continuous,"
        " the same load for both",
        STATIC,
    ),
    Claim(
        SPECULATIVE,
        "speculative decoding is faster",
        "2.3 x",
        "not in Tandem, which does not speculate: `generate` of transformers in process, with"
        " prompt lookup over without, `models/demo` in float32, eight questions, the same tokens",
        SPECULATIVE,
    ),
    *(
        Claim(
            key,
            f"tokens/s and cost: {title}",
            "no figure",
            "Poisson at 15/s for 4 s, 128 + 64 tokens, one pool, from first arrival to last token",
            key,
            _RATE,
        )
        for key, title in zip(
            MODE_KEYS,
            ("one by one", "10 ms window", "50 ms window", "continuous"),
            strict=True,
        )
    ),
)
KEYS = tuple(claim.key for claim in CLAIMS)


def claims_table(
    by_claim: Mapping[str, Sequence[float]], price_per_hour: float = PRICE_PER_HOUR
) -> str:
    """The table of claims, with measured values and the commands that measure them."""
    rows = []
    for claim in CLAIMS:
        values = by_claim.get(claim.key)
        measured = _shown(values, claim.unit, price_per_hour) if values else UNMEASURED
        run = f"`{RUN.format(claim.key)}`"
        rows.append([claim.text, claim.claimed, measured, claim.how, run])
    return table(["claim", "claimed", "measured: median [range]", "how", "to run"], rows)


def as_series(
    by_claim: Mapping[str, Sequence[float]],
    machine: dict[str, str],
    price_per_hour: float = PRICE_PER_HOUR,
) -> Series:
    """The series of the measured claims, by their keys."""
    figures = {
        claim.key: figure(by_claim.get(claim.key, ()), claim.unit, "repeats") for claim in CLAIMS
    }
    return series_of("claims", machine, {"dollars_per_hour": price_per_hour}, figures)


def cost_per_million(tokens_per_s: float, price_per_hour: float) -> float:
    """The cost of a million tokens on a machine that only serves."""
    return price_per_hour / 3600 / tokens_per_s * 1e6


def parts_of(keys: Sequence[str]) -> list[str]:
    """The parts of a run that measure these claims."""
    return list(dict.fromkeys(claim.part for claim in CLAIMS if claim.key in keys))


def _shown(values: Sequence[float], unit: str, price_per_hour: float) -> str:
    spread = Spread(tuple(values))
    shown = f"{spread.show(2 if unit == 'x' else 0)} {unit}"
    if unit != _RATE:
        return shown
    return f"{shown}, ${cost_per_million(spread.median, price_per_hour):.3f} per million"
