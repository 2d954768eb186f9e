"""For each alert what makes it fire and what must not: samples once a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Samples = dict[str, list[float | None]]
# Ray's own label, which rules have to sum away.
_WORKERS = ("a1", "b2")


@dataclass(frozen=True)
class Case:
    """Series as Prometheus has them; `labels` are those of the alert that fires.

    `minute` is the first in which it fires: its condition has held for as long as it has to.
    """

    alert: str
    minute: int
    fires: Samples
    calm: Samples
    labels: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def steady(*phases: tuple[float | None, int]) -> list[float | None]:
    """Each value for so many minutes; None: no sample."""
    return [value for value, minutes in phases for _ in range(minutes)]


def rising(*phases: tuple[float, int]) -> list[float | None]:
    """A counter that rises by so much per minute, for so many minutes each."""
    values: list[float | None] = [0.0]
    for per_minute, minutes in phases:
        for _ in range(minutes):
            values.append((values[-1] or 0.0) + per_minute)
    return values


def name(metric: str, **labels: str) -> str:
    pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"ray_{metric}{{{pairs}}}"


def workers(metric: str, values: list[float | None], **labels: str) -> Samples:
    """The same series from two processes."""
    return {name(metric, WorkerId=worker, **labels): values for worker in _WORKERS}


def of_budget(**below: float) -> Samples:
    """First tokens per minute whose time was below that part of their budget."""
    where = {"endpoint": "chat", "lane": "interactive", "WorkerId": "a1"}
    return {
        name("tandem_ttft_budget_ratio_bucket", **where, le=bound): rising((count, 30))
        for bound, count in below.items()
    }


def queue_wait(seconds: tuple[float, float], lane: str = "interactive") -> Samples:
    """Sixty prompts a minute that wait so long, and after an hour and more that long."""
    where = {"endpoint": "chat", "lane": lane, "tenant": "default", "stage": "queue"}
    before_s, after_s = (60 * wait for wait in seconds)
    return {
        **workers(
            "tandem_stage_seconds_exact_sum_total", rising((before_s, 70), (after_s, 15)), **where
        ),
        **workers("tandem_stage_seconds_count", rising((60, 85)), **where),
    }


def arrival_lag(seconds: float) -> Samples:
    """Probes of the gRPC front end that all waited so long."""
    bounds = ("0.05", "0.1", "0.25", "+Inf")
    return {
        name(
            "tandem_arrival_lag_seconds_bucket", front_end="grpc", le=bound, WorkerId="a1"
        ): rising((240.0 if seconds <= float(bound) else 0.0, 30))
        for bound in bounds
    }


def predicted(ratio: float) -> Samples:
    """A hundred first tokens a minute that were all predicted at that part of their time."""
    where = {"endpoint": "chat", "lane": "interactive", "WorkerId": "a1"}
    bounds = ("0.1", "0.25", "0.5", "0.75", "0.9", "1.1", "1.33", "2.0", "4.0", "+Inf")
    return {
        name("tandem_ttft_predicted_ratio_bucket", **where, le=bound): rising(
            (100.0 if ratio <= float(bound) else 0.0, 30)
        )
        for bound in bounds
    }


def outcomes(**per_minute: float) -> Samples:
    where = {"endpoint": "chat", "lane": "interactive", "tenant": "default"}
    return {
        name("tandem_requests_total", **where, outcome=outcome): rising((count, 30))
        for outcome, count in per_minute.items()
    }


def batch(requests: tuple[float, float], running: tuple[float, float]) -> Samples:
    """Six hundred steps a minute of so many requests, and how many are in the routers."""
    before, after = (600 * count for count in requests)
    return {
        **workers(
            "tandem_decode_batch_requests_exact_sum_total", rising((before, 70), (after, 15))
        ),
        **workers("tandem_decode_batch_requests_count", rising((600, 85))),
        name("tandem_router_running_requests", WorkerId="c3"): steady(
            (running[0], 71), (running[1], 15)
        ),
    }


def blocks(**states: float) -> Samples:
    where = {"role": "decode", "replica": "decode#1"}
    return {
        name("tandem_kv_blocks", **where, state=state): steady((count, 40))
        for state, count in states.items()
    }


def losses(lost: list[float | None], replicas: float) -> Samples:
    """Two routers that see the same."""
    return {
        **workers("tandem_replicas_lost_total", lost, role="decode"),
        **workers("tandem_replicas", steady((replicas, len(lost))), role="decode"),
    }


CHAT = {"endpoint": "chat"}
DECODE = {"role": "decode", "replica": "decode#1"}
NEAR = {"0.5": 50.0, "0.9": 90.0, "1.0": 99.0, "1.1": 100.0, "+Inf": 100.0}
WELL = {"0.5": 90.0, "0.9": 96.0, "1.0": 99.0, "1.1": 100.0, "+Inf": 100.0}
LATE = {"0.5": 10.0, "0.9": 60.0, "1.0": 90.0, "1.1": 98.0, "+Inf": 100.0}

CASES = (
    Case("TandemFirstTokensNearBudget", 6, of_budget(**NEAR), of_budget(**WELL), CHAT),
    Case(
        "TandemFirstTokensLate",
        6,
        of_budget(**LATE),
        of_budget(**NEAR),
        CHAT,
        also=("TandemFirstTokensNearBudget",),
    ),
    Case("TandemQueueWaitRising", 77, queue_wait((0.05, 0.3)), queue_wait((0.01, 0.06)), CHAT),
    Case("TandemArrivingLate", 6, arrival_lag(0.2), arrival_lag(0.05), {"front_end": "grpc"}),
    Case("TandemPredictionOff", 11, predicted(0.25), predicted(0.9), CHAT),
    Case("TandemPredictionOff", 11, predicted(4.0), predicted(1.1), CHAT),
    Case(
        "TandemIdleConnectionsClosed",
        8,
        workers(
            "tandem_refused_connections_total", rising((6, 30)), listener="http", reason="evicted"
        ),
        workers(
            "tandem_refused_connections_total",
            rising((60, 30)),
            listener="http",
            reason="malformed",
        ),
        {"listener": "http"},
    ),
    Case(
        "TandemRefusing",
        8,
        workers("tandem_refused_total", rising((6, 30)), endpoint="chat", reason="ttft"),
        workers("tandem_refused_total", rising((2, 30)), endpoint="chat", reason="ttft"),
        {"endpoint": "chat", "reason": "ttft"},
    ),
    Case(
        "TandemFailing",
        6,
        outcomes(ok=100, Internal=4, ReplicaLost=4),
        outcomes(ok=100, NotFound=50, cancelled=50, Refused=50, Internal=4),
    ),
    Case("TandemBatchCollapsed", 79, batch((32, 4), (40, 40)), batch((32, 4), (40, 5))),
    Case(
        "TandemBlocksNearlyGone",
        10,
        blocks(free=1, cached=2, used=90, leased=7, quarantined=0, orphaned=0),
        blocks(free=0, cached=40, used=60, leased=0, quarantined=0, orphaned=0),
        DECODE,
    ),
    Case(
        "TandemEvictionSpike",
        73,
        workers("tandem_prefix_evictions_total", rising((6, 70), (300, 9)), pool="prefill"),
        workers("tandem_prefix_evictions_total", rising((300, 79)), pool="prefill"),
        {"pool": "prefill"},
    ),
    Case(
        "TandemOrphanedBlocks",
        1,
        blocks(free=90, cached=7, orphaned=3),
        blocks(free=90, cached=10, orphaned=0),
        DECODE,
    ),
    Case(
        "TandemReplicaFlapping",
        6,
        losses(rising((1, 20)), replicas=1),
        losses(rising((0, 5), (1, 4), (0, 11)), replicas=4),
        {"role": "decode"},
    ),
    Case(
        "TandemStepsFail",
        11,
        {name("tandem_prefill_step_failures_total", WorkerId="a1"): steady((None, 10), (1, 3))},
        {name("tandem_prefill_step_failures_total", WorkerId="a1"): steady((3, 60))},
    ),
    Case(
        "TandemStepsFail",
        12,
        workers("tandem_decode_step_failures_total", rising((0, 10), (1, 3))),
        workers("tandem_decode_step_failures_total", steady((3, 60))),
    ),
)

# More that must not wake anybody.
CALM = (
    queue_wait((0.05, 9.0), lane="batch"),
    batch((32, 30), (40, 40)),
    losses(rising((0, 20)), replicas=0),
    {**blocks(free=0, cached=0, used=0), **outcomes(ok=0)},
)
