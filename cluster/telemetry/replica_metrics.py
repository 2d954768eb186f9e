"""The gauges of every prefill and decode replica, set with each heartbeat."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.replica_record import ReplicaLoad, ReplicaRole
from engine.telemetry import Gauge

_REPLICA = ("role", "replica")
_STATES = ("free", "cached", "used", "leased", "quarantined", "orphaned")

WAITING = Gauge("tandem_replica_waiting_requests", "Requests that wait.", _REPLICA)
ACTIVE = Gauge("tandem_replica_running_requests", "Requests being computed.", _REPLICA)
BLOCKS = Gauge(
    "tandem_kv_blocks",
    "KV blocks by state: free, cached, used, leased, quarantined; orphaned ones are a fault.",
    (*_REPLICA, "state"),
)
BATCH_LIMIT = Gauge(
    "tandem_decode_batch_limit_requests",
    "Requests that may share a step now: `decode.max_batch`, less where steps were too slow.",
    _REPLICA,
)
OCCUPANCY = Gauge(
    "tandem_decode_batch_occupancy_ratio", "Running streams over `decode.max_batch`.", _REPLICA
)

START = Gauge(
    "tandem_start_seconds",
    "The stages of a replica's start, once it has registered.",
    (*_REPLICA, "stage"),
)


def show(load: ReplicaLoad, role: ReplicaRole, replica: str, max_batch: int) -> None:
    """Set the gauges to the load of a replica; `max_batch` is the configured one.

    A prefill replica has no decode batch.
    """
    labels = {"role": role, "replica": replica}
    WAITING.set(load.waiting, **labels)
    ACTIVE.set(load.running, **labels)
    for state in _STATES:
        BLOCKS.set(getattr(load, f"blocks_{state}"), **labels, state=state)
    if role != "prefill":
        BATCH_LIMIT.set(load.batch_limit, **labels)
        OCCUPANCY.set(load.streams / max_batch, **labels)


def show_start(start_s: Mapping[str, float], role: ReplicaRole, replica: str) -> None:
    """Set the seconds of each stage of the start. Called often, because Ray forgets old gauges."""
    for stage, seconds in start_s.items():
        START.set(seconds, role=role, replica=replica, stage=stage)
