"""Tandem's goals, and the figures that are compared with them."""

from __future__ import annotations

from dataclasses import dataclass

from bench.compare.comparison import COLUMNS
from bench.compare.comparison import GOALS as PEER_GOALS
from bench.load.traces import FITTED
from bench.systems.contenders import BURST_LOAD, RETRY_LOAD
from bench.systems.peer_systems import TANDEM

AT_LEAST, AT_MOST, BELOW = ">=", "<=", "<"
_TRACES = tuple(FITTED)


@dataclass(frozen=True, slots=True)
class GoalSource:
    """A figure of a benchmark that is compared with a goal.

    `label` tells several figures of one goal apart. Of a benchmark with loads only the
    named loads count.
    """

    benchmark: str
    figure: str
    label: str = ""
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound, in the unit of its figures. `in_time`: it grows with times and budgets."""

    title: str
    bound: str
    limit: float
    sources: tuple[GoalSource, ...]
    in_time: bool = False

    def limit_for(self, slow: float) -> float:
        """The bound of a load whose times are `slow` times as long."""
        return self.limit * slow if self.in_time else self.limit

    def is_met(self, value: float, slow: float) -> bool:
        """Whether a figure meets the goal."""
        limit = self.limit_for(slow)
        if self.bound == AT_LEAST:
            return value >= limit
        return value < limit if self.bound == BELOW else value <= limit


def _burst(figure: str, load: str = BURST_LOAD) -> tuple[GoalSource, ...]:
    return (GoalSource("burst", figure, loads=(load,)),)


def _by_turns(figure: str, loads: tuple[str, ...], benchmark: str) -> tuple[GoalSource, ...]:
    """The figure in runs one after the other, and in runs of both modes in turn."""
    return (
        GoalSource(benchmark, figure, loads=loads),
        GoalSource("interleaved", figure, "by turns", loads),
    )


def _by_columns(figure: str, benchmark: str, labels: tuple[str, ...]) -> tuple[GoalSource, ...]:
    return tuple(GoalSource(benchmark, figure.format(label), label) for label in labels)


_BURSTS = (
    Goal(
        "Goodput over the best peer, bursts, x",
        AT_LEAST,
        1.45,
        _burst("pools over the best peer: goodput"),
    ),
    Goal(
        "Goodput over one pool, bursts, x",
        AT_LEAST,
        1.0,
        _by_turns("pools over single: goodput", (BURST_LOAD,), "burst"),
    ),
    Goal(
        "ITL p95 over one pool's, bursts, x",
        BELOW,
        1.0,
        _by_turns("pools over single: ITL p95", (BURST_LOAD,), "burst"),
    ),
    Goal(
        "Requests of the burst within their goals",
        AT_LEAST,
        24,
        _burst("pools: within goals, burst"),
    ),
    Goal("TTFT p99 in the burst, ms", AT_MOST, 1200, _burst("pools: TTFT p99, burst"), True),
    Goal(
        "TTFT p99 in the burst over the calm's, x",
        AT_MOST,
        2.0,
        _burst("pools: TTFT p99, burst over calm"),
    ),
    Goal(
        "Refusal: time to the decision p99, ms",
        AT_MOST,
        500,
        _burst("pools: refusal decided p99"),
        True,
    ),
    Goal(
        "Refusal: time from the decision to the client p99, ms",
        AT_MOST,
        50,
        _burst("pools: refusal told p99"),
    ),
    Goal(
        "Refusal: retry time over the work in it, median, x",
        AT_MOST,
        1.5,
        _burst("pools: retry time over work p50"),
    ),
    Goal(
        "Refused requests that return and are then within their goals, of 1",
        AT_LEAST,
        0.9,
        _burst("pools: returned, then within goals", RETRY_LOAD),
    ),
)
_ON_TRACES = (
    Goal(
        "Goodput over one pool, traces, x",
        AT_LEAST,
        1.0,
        _by_turns("pools over single: goodput", _TRACES, "traces"),
    ),
    *(
        Goal(
            f"ITL {point} over one pool's, traces, x",
            BELOW,
            1.0,
            _by_turns(f"pools over single: ITL {point}", _TRACES, "traces"),
        )
        for point in ("p95", "p50")
    ),
)
_STREAMS = (
    Goal(
        "ITL p95 beside long prompts over that before, x",
        AT_MOST,
        2.0,
        (GoalSource("itl", "pools: ITL p95, during over before"),),
    ),
)
_CHOSEN = ("greedy", "sampled")
_GUIDED = (
    Goal(
        "Token gap of 32 guided streams over free streams, x",
        AT_MOST,
        1.1,
        _by_columns("{}: guided over free", "guided", (*_CHOSEN, "served")),
    ),
    Goal(
        "Token gap of 32 free streams over that without the making of masks, x",
        AT_MOST,
        1.01,
        _by_columns("{}: free over without masks", "guided", _CHOSEN),
    ),
)
_API = ("gRPC", "HTTP")
_ROUTER = (
    Goal(
        "Router: added to TTFT p50 with 500 streams open, ms",
        AT_MOST,
        1.5,
        _by_columns("{}, 500 streams open: added to TTFT p50", "router", _API),
    ),
    Goal(
        "Router: added to TTFT p99 with 500 streams open, ms",
        AT_MOST,
        5.0,
        _by_columns("{}, 500 streams open: added to TTFT p99", "router", _API),
    ),
    Goal(
        "Router: messages a second, one token each",
        AT_LEAST,
        8000,
        _by_columns("{}, 1 token a message: messages", "router", _API),
    ),
    Goal(
        "Router: tokens a second, 24 a message",
        AT_LEAST,
        100_000,
        _by_columns("{}, 24 tokens a message: tokens", "router", _API),
    ),
)
_CANCEL = (
    Goal(
        "TTFT of a short prompt behind ten cancelled prompts over alone, x",
        AT_MOST,
        1.2,
        (GoalSource("cancel", "behind over alone: TTFT p50"),),
    ),
    Goal(
        "Time within which 99 of 100 cancels are through, ms",
        AT_MOST,
        250,
        (GoalSource("cancel", "cancels: 99 of 100 within"),),
    ),
)
_OVERLOAD = (
    Goal(
        "At five times the capacity: served within the budget, of 1",
        AT_LEAST,
        1.0,
        (GoalSource("overload", "served: within budget"),),
    ),
    Goal(
        "At five times the capacity: refused within half of the budget, of 1",
        AT_LEAST,
        1.0,
        (GoalSource("overload", "refused: within half of the budget"),),
    ),
    Goal(
        "At five times the capacity: refused without a retry time, requests",
        AT_MOST,
        0,
        (GoalSource("overload", "without a retry time"),),
    ),
    Goal("Calm after an overload, s", AT_MOST, 10, (GoalSource("overload", "calm after"),)),
)
_PEERS = tuple(
    Goal(
        f"Tokens a second over the best peer over HTTP, {column}, x",
        AT_LEAST,
        PEER_GOALS[column],
        (GoalSource("peers", f"{TANDEM} over the best peer: {column}"),),
    )
    for column in COLUMNS
)
_HAND_OVERS = ("1 x 1,024", "1 x 4,096", "1 x 32,768", "8 x 1,024", "32 x 1,024")
_WAYS = ("borrowed blocks", "shared_memory", "gloo")
_TRANSFER = (
    Goal(
        "Hand-over of KV over its floor, x",
        AT_MOST,
        1.25,
        tuple(
            GoalSource("transfer", f"{way}, {size} tokens: of the floor", f"{way}, {size} tokens")
            for way in _WAYS
            for size in _HAND_OVERS
        ),
    ),
    Goal(
        "Hand-over while the prompt is computed: what is left over the floor, of 1",
        AT_MOST,
        0.15,
        tuple(
            GoalSource(
                "transfer", f"{way}, {size} tokens while computed: of the floor", f"{way}, {size}"
            )
            for way in _WAYS
            for size in ("4,096", "8,192")
        ),
    ),
    Goal(
        "Data channel over the fastest plain copy, of 1",
        AT_LEAST,
        0.85,
        _by_columns("{}: channel over plain copy", "transfer", _WAYS[1:]),
    ),
)
GOALS: tuple[Goal, ...] = (
    *_BURSTS,
    *_ON_TRACES,
    *_STREAMS,
    *_GUIDED,
    *_ROUTER,
    *_CANCEL,
    *_OVERLOAD,
    *_PEERS,
    *_TRANSFER,
)
