"""The environment variables of a replica's process: threads and allocator."""

from __future__ import annotations

import os

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# One heap that keeps what it has: a step's temporaries would else be given back to the system and
# faulted in anew, step after step, as threads other than the first have small heaps of their own.
_ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}

# For prefill replicas: GNU OpenMP's threads keep a core for milliseconds when their work is done.
# Beside decode replicas that costs more than it brings to prompts, whose operations are long.
SHORT_SPINS = {"GOMP_SPINCOUNT": "1000"}

_ALWAYS = {
    "TQDM_DISABLE": "1",  # a progress bar is no line of a log
    # Seconds between what a replica tells Serve of its pool's desired size; 10 by default.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
}


def process_environment(threads: int) -> dict[str, str]:
    """The variables of a process that computes with so many threads.

    The log level of this process is passed on.
    """
    passed = {key: os.environ[key] for key in ("TANDEM_LOG",) if key in os.environ}
    return passed | dict.fromkeys(_THREADS, str(threads)) | _ALLOCATOR | _ALWAYS
