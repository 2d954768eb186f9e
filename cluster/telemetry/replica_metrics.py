"""What the shell of every prefill and decode replica shows, renewed with each heartbeat."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.replica_record import ReplicaLoad, ReplicaRole
from engine.telemetry import Gauge

_WHO = ("role", "replica")
_STATES = ("free", "cached", "used", "leased", "quarantined", "orphaned")

WAITING = Gauge("tandem_replica_waiting_requests", "Requests that wait.", _WHO)
ACTIVE = Gauge("tandem_replica_running_requests", "Requests being computed.", _WHO)
BLOCKS = Gauge(
    "tandem_kv_blocks",
    "KV blocks by state: free, cached, used, leased, quarantined; orphaned ones are a fault.",
    (*_WHO, "state"),
)
BATCH_LIMIT = Gauge(
    "tandem_decode_batch_limit_requests",
    "Requests that may share a step now: `decode.max_batch`, less where steps were too slow.",
    _WHO,
)
OCCUPANCY = Gauge(
    "tandem_decode_batch_occupancy_ratio", "Running streams over `decode.max_batch`.", _WHO
)

START = Gauge(
    "tandem_start_seconds",
    "The stages of a replica's start, once it has registered.",
    (*_WHO, "stage"),
)


def show(load: ReplicaLoad, role: ReplicaRole, replica: str, max_batch: int) -> None:
    """Set all of them to what a replica is doing; `max_batch` is the configured one."""
    who = {"role": role, "replica": replica}
    WAITING.set(load.waiting, **who)
    ACTIVE.set(load.running, **who)
    for state in _STATES:
        BLOCKS.set(getattr(load, f"blocks_{state}"), **who, state=state)
    BATCH_LIMIT.set(load.batch_limit, **who)
    OCCUPANCY.set(load.streams / max_batch, **who)


def show_start(start_s: Mapping[str, float], role: ReplicaRole, replica: str) -> None:
    """Set the seconds of each stage of its start; again and again, as Ray forgets old gauges."""
    for stage, seconds in start_s.items():
        START.set(seconds, role=role, replica=replica, stage=stage)
