"""The gauges of a replica are those of its role."""

from __future__ import annotations

from cluster.replica_record import ReplicaLoad
from cluster.telemetry import replica_metrics
from tests.metrics_page import recorded


def test_a_prefill_replica_shows_no_decode_batch() -> None:
    with recorded() as page:
        for role in ("prefill", "decode", "both"):
            replica_metrics.show(ReplicaLoad(batch_limit=8, streams=2), role, f"{role}#1", 8)
    for gauge, value in (("limit_requests", 8), ("occupancy_ratio", 0.25)):
        shown = page.series(f"tandem_decode_batch_{gauge}")
        assert {labels["role"]: at for labels, at in shown} == {"decode": value, "both": value}
    assert {labels["role"] for labels, _ in page.series("tandem_replica_running_requests")} == {
        *("prefill", "decode", "both")
    }
