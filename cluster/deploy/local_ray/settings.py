"""The environment of a Ray on one machine: closed to others, quiet, and with a GCS that may die."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cluster.deploy.local_ray.tuning import QUIET_RAY

# Bound: how long Ray's processes wait for a GCS beyond a drain; Ray's own default.
_RECONNECT_S = 60

_ALWAYS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # its ports take code, so from holders of its token alone
    # The node's address is then 127.0.0.1, and Ray's servers listen there alone. An address of
    # 127.0.0.1 that is given to ray.init becomes that of the host.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after ray.shutdown must not start a cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # 15 by default: whatever else runs here would come first
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # at 0.1 s it takes 5 % of a core
    "RAY_DEDUP_LOGS": "0",  # it delays lines of the log for seconds
    "RAY_gcs_storage": "rocksdb",  # in memory its state dies with it
    **QUIET_RAY,
}
# What an environment may not change.
_FIXED = ("RAY_AUTH_MODE",)
# Ray's pages of metrics ask for no key, and the page of replicas names tenants.
_NO_METRICS = {
    "RAY_enable_metrics_collection": "0",
    # Ray knows no switch for these two. It logs that it cannot listen, and goes on.
    "DASHBOARD_METRIC_PORT": "-1",
    "AUTOSCALER_METRIC_PORT": "-1",
}


def local_environment(
    folder: Path, gcs: Path, drain_s: float, *, open_metrics: bool = True
) -> Mapping[str, str]:
    """The variables of a local Ray, which keeps sessions in `folder` and its GCS's state in `gcs`.

    With `open_metrics` it shows metrics to all users of the host. Ray reads the variables when it
    is imported.
    """
    return (
        _ALWAYS
        | ({} if open_metrics else _NO_METRICS)
        | {
            "RAY_TMPDIR": str(folder),
            "RAY_gcs_storage_path": str(gcs),
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(round(drain_s) + _RECONNECT_S),
        }
    )


def set_environment(variables: Mapping[str, str]) -> None:
    """Set the variables of this process; those that are set already stay, but for Ray's token."""
    for key, value in variables.items():
        if key in _FIXED:
            os.environ[key] = value
        else:
            os.environ.setdefault(key, value)
