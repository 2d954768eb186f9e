"""Ray Serve's autoscaling policy: as many replicas as the cluster's own controller wants.

Serve's own signal counts the requests that pass through it, and none does. The controller
(`cluster/autoscaling/controller.py`) sees what routers and replicas report and leaves in the
directory how many
replicas a pool should have; each replica reads it and hands it to Serve as a statistic of its own
(`record_autoscaling_stats`), in whose controller this policy runs.

Serve copies this module there by value, so it imports nothing of ours.
"""

from __future__ import annotations

from typing import Any

WANTED = "tandem_wanted_replicas"


def follow_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """What a replica recorded last, in `ray.serve.config.AutoscalingContext`, and no state.

    Nothing known means no change: an outage of the directory scales nothing. Serve keeps bounds.
    """
    series = (context.raw_metrics or {}).get(WANTED, {}).values()
    latest = max(
        (one[-1] for one in series if one), key=lambda point: point.timestamp, default=None
    )
    return (context.target_num_replicas if latest is None else round(latest.value)), {}
