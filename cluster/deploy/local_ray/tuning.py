"""Settings that lower the load of Ray's own processes, because engines need the cores.

A step's threads meet again and again: a core that one of them loses is lost to all. On two cores a
cluster with nothing to do took 17.5 to 18.7 % of one, Tandem's own loops with it; what each setting
saves of one core is behind it.
No setting delays the detection of a lost node or process. Memory pressure is detected up to a
second later. The dashboard's data of a node are at most 10 s old. Lines of a new log file reach the
terminal up to half a second later.
"""

QUIET_RAY = {
    # Statistics of event loops, for debugging Ray, taken 100 times a second in each worker: 0.5 %.
    "RAY_event_stats": "0",
    # Workers kept ready: replicas have an environment of their own and never use them: 0.9 %.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_num_workers_soft_limit": "0",
    # The raylet's checks of memory, at the disk, at idle workers, 4 to 10 a second: 0.4 %.
    "RAY_raylet_check_gc_period_milliseconds": "1000",
    "RAY_memory_monitor_refresh_ms": "1000",
    "RAY_local_fs_monitor_interval_ms": "1000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_kill_idle_workers_interval_ms": "1000",
    # Polls for new files of the log, twice a second instead of ten times: 0.5 %.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    # What a node and its processes use, for the dashboard, from 5 s: 0.3 % with the next.
    "REPORTER_UPDATE_INTERVAL_MS": "10000",
    # Whether there are events to report, from 0.1 s.
    "EVENT_AGENT_REPORT_INTERVAL_SECONDS": "1",
    # Serve's counters of requests that come through it, of which there are none, from 0.1 s: 0.5 %.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",
}
