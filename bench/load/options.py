"""The arguments of `tandem bench`, and their values. Imports no heavy module."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from bench.load.arrivals import CALM, Lengths, Load, LoadPhase, burst_phases, poisson
from bench.load.goodput import Budgets
from bench.load.open_loop import Rules
from bench.load.traces import FITTED, TraceScale, load_trace

_SCALE_FLAGS = ("start_s", "seconds", "speed", "shrink", "share", "spread_s", "block_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All arguments of `tandem bench`."""
    parser.add_argument(
        "what", nargs="?", choices=("run", "sweep"), default="run", help="one load, or many rates"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="an OpenAI-compatible API")
    parser.add_argument("--model", metavar="NAME", help="default: the first one it lists")
    parser.add_argument(
        "--chat", action="store_true", help="post to /v1/chat/completions, a user message each"
    )
    parser.add_argument(
        "--endpoint", metavar="NAME", help="of Tandem's endpoints; default: the server's"
    )
    parser.add_argument(
        "--key-env", metavar="VARIABLE", help="environment variable with the API key"
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        default=os.environ.get("TANDEM_TLS_CA"),
        help="trust this authority alone (PEM; default: TANDEM_TLS_CA)",
    )
    parser.add_argument("--out", type=Path, default=Path("bench-report"), help="without a suffix")
    parser.add_argument("--title", metavar="TEXT", help="what the report is of; default: the URL")
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        metavar="FILE",
        help="the JSON of an earlier sweep, to be drawn beside this one; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=1, help="decides arrivals, lengths, prompts")
    _add_load(parser)
    _add_trace(parser)
    _add_rules(parser)


def read_load(options: argparse.Namespace, seed: int | None = None) -> Load:
    """The load of the options; raises ValueError or OSError."""
    seed = options.seed if seed is None else seed
    if options.trace is not None:
        return load_trace(options.trace, read_scale(options), seed)
    phases = burst_phases(
        options.rate,
        options.burst_factor,
        before_s=options.before,
        burst_s=options.burst,
        drain_s=options.drain,
        after_s=options.after,
    )
    title = (
        f"Poisson at {options.rate:g}/s, {options.burst_factor:g} times that for"
        f" {options.burst:g} s after {options.before:g} s; {_words(read_lengths(options))}"
    )
    return poisson(phases, read_lengths(options), seed, title)


def steady_load(options: argparse.Namespace, rate: float) -> Load:
    """A sweep's load at one rate; raises ValueError."""
    lengths = read_lengths(options)
    title = f"Poisson at {rate:g}/s for {options.step:g} s; {_words(lengths)}"
    return poisson((LoadPhase(CALM, options.step, rate),), lengths, options.seed, title)


def read_lengths(options: argparse.Namespace) -> Lengths:
    """Prompt lengths `A:B` and new tokens; raises ValueError."""
    least, _, most = options.prompt_tokens.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise ValueError(f"--prompt-tokens: {options.prompt_tokens!r} is not A:B")
    return Lengths(int(least), int(most or least), options.new_tokens)


def read_scale(options: argparse.Namespace) -> TraceScale:
    """The scale of the trace: that of its name, with the given options."""
    fitted = FITTED.get(options.trace.name.partition(".")[0], TraceScale())
    given = {name: getattr(options, f"trace_{name}") for name in _SCALE_FLAGS}
    return replace(fitted, **{name: value for name, value in given.items() if value is not None})


def read_rules(options: argparse.Namespace) -> Rules:
    """The rules of each request."""
    return Rules(deadline_s=options.deadline, returns=options.retry)


def read_budgets(options: argparse.Namespace) -> Budgets:
    """The latency goals of an answer."""
    milliseconds = (options.ttft_ms, options.itl_ms, options.stall_ms)
    return Budgets(*(value / 1000 for value in milliseconds))


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=float, default=1.0, help="requests per second in the calm")
    load.add_argument("--burst-factor", type=float, default=10.0, help="times the calm rate")
    load.add_argument("--before", type=float, default=50.0, metavar="S", help="calm before")
    load.add_argument("--burst", type=float, default=5.0, metavar="S", help="how long it bursts")
    load.add_argument(
        "--drain", type=float, default=13.0, metavar="S", help="counted apart after the burst"
    )
    load.add_argument("--after", type=float, default=0.0, metavar="S", help="calm afterwards")
    load.add_argument("--prompt-tokens", default="64:1024", metavar="A:B", help="drawn evenly")
    load.add_argument("--new-tokens", type=int, default=32, help="of an answer")
    load.add_argument("--vocabulary", type=int, default=1000, help="prompts are ids below this")
    load.add_argument(
        "--rates", type=_rates, default="0.5,1,2,3,4", metavar="A,B", help="of a sweep, by commas"
    )
    load.add_argument("--step", type=float, default=30.0, metavar="S", help="a sweep's time a rate")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    trace = parser.add_argument_group("trace, instead of Poisson")
    trace.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths as CSV")
    trace.add_argument(
        "--trace-start", dest="trace_start_s", type=float, metavar="S", help="what is left out"
    )
    trace.add_argument("--trace-seconds", type=float, metavar="S", help="of our time")
    trace.add_argument("--trace-speed", type=float, metavar="X", help="2 is twice as fast")
    trace.add_argument("--trace-shrink", type=float, metavar="X", help="lengths are divided by it")
    trace.add_argument("--trace-share", type=float, metavar="X", help="requests kept, up to 1")
    trace.add_argument(
        "--trace-spread",
        dest="trace_spread_s",
        type=float,
        metavar="S",
        help="arrivals are spread over it, where the clock of the trace is coarse",
    )
    trace.add_argument(
        "--trace-block",
        dest="trace_block_tokens",
        type=int,
        metavar="TOKENS",
        help="tokens of a block of the trace",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    rules = parser.add_argument_group("requests, budgets, and what is watched")
    rules.add_argument("--deadline", type=float, default=120.0, metavar="S", help="of an answer")
    rules.add_argument(
        "--retry", type=int, default=0, metavar="N", help="times the refused come back when told"
    )
    rules.add_argument("--stop-at-eos", action="store_true", help="do not send ignore_eos")
    rules.add_argument("--ttft-ms", type=float, default=1000.0, help="of the first token")
    rules.add_argument("--itl-ms", type=float, default=60.0, help="of the mean between tokens")
    rules.add_argument("--stall-ms", type=float, default=250.0, help="of the longest silence")
    text = "polls URL/metrics, with the key in TANDEM_METRICS_KEY; may be repeated"
    rules.add_argument("--metrics", action="append", metavar="URL", help=text)
    rules.add_argument("--watch", action="append", metavar="NAME", help="one more metric to plot")


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers by commas") from None


def _words(lengths: Lengths) -> str:
    return f"prompts of {lengths.least} to {lengths.most} tokens, {lengths.new} new ones"
