"""Ray Serve's autoscaling policy: as many replicas as the cluster's own controller desires.

Serve's own signal counts the requests that pass through Serve, and none does. The controller
(`cluster/autoscaling/controller.py`) sees what routers and replicas report, and publishes in the
directory how many replicas a pool should have. Each replica reads that number and hands it to Serve
as a statistic (`record_autoscaling_stats`). This policy runs in Serve's controller.

Serve copies this module there by value, so the module imports nothing of ours.
"""

from __future__ import annotations

from typing import Any

DESIRED = "tandem_desired_replicas"


def follow_desired(context: Any) -> tuple[int, dict[str, Any]]:
    """The number that a replica recorded last, and no state.

    `context` is a `ray.serve.config.AutoscalingContext`. Without a number nothing changes, so an
    outage of the directory scales nothing. Serve keeps the bounds.
    """
    series = (context.raw_metrics or {}).get(DESIRED, {}).values()
    latest = max(
        (one[-1] for one in series if one), key=lambda point: point.timestamp, default=None
    )
    return (context.target_num_replicas if latest is None else round(latest.value)), {}
