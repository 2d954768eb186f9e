"""Polls gauges of a server during a load: queue, batch and KV, from its Prometheus metrics.

Only texts and times are kept while the load runs; they are parsed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from bench.load.client import Target, send_request
from bench.load.http_recording import BadAnswer

# Seconds and value.
TimeSeries = list[tuple[float, float]]

_TITLES = {
    "tandem_replica_waiting_requests": "waiting",
    "tandem_replica_running_requests": "running",
    "tandem_router_running_requests": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_running": "running",
}
_KV_SHARE = "vllm:kv_cache_usage_perc"
_KV_BLOCKS = "tandem_kv_blocks"
_KV = "KV in use, share"
_STATES = ("free", "cached", "used")
_POLL_DEADLINE_S = 2.0


@dataclass(slots=True)
class MetricsPoller:
    """Polls `/metrics` of some targets every `every_s`; `more` names further gauges."""

    targets: Sequence[Target]
    every_s: float = 0.5
    more: Sequence[str] = ()
    texts: list[tuple[float, str]] = field(default_factory=list)

    async def run(self) -> None:
        """Poll until cancelled; a poll that fails is left out."""
        while True:
            for target in self.targets:
                with contextlib.suppress(OSError, TimeoutError, BadAnswer):
                    answer = await send_request(target, target.get("/metrics"), _POLL_DEADLINE_S)
                    self.texts.append((time.perf_counter(), answer.body().decode()))
            await asyncio.sleep(self.every_s)

    def series(self, zero: float) -> dict[str, TimeSeries]:
        """The values of each gauge by title, in seconds from `zero`."""
        found: dict[str, TimeSeries] = defaultdict(list)
        for moment, text in self.texts:
            for title, value in gauges(text, self.more).items():
                found[title].append((moment - zero, value))
        return dict(found)


def gauges(text: str, more: Sequence[str] = ()) -> dict[str, float]:
    """The values in one text by title and role, summed over replicas.

    Ray exports a name with `ray_` in front. Raises ValueError if the text is not in Prometheus'
    format.
    """
    sums: dict[str, float] = defaultdict(float)
    used: dict[str, float] = defaultdict(float)
    blocks: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("ray_")
            role = sample.labels.get("role", "")
            if name in _TITLES:
                sums[_titled(_TITLES[name], role)] += sample.value
            elif name == _KV_SHARE:
                sums[_KV] += sample.value
            elif name == _KV_BLOCKS and sample.labels.get("state") in _STATES:
                blocks[role] += sample.value
                used[role] += sample.value * (sample.labels["state"] == "used")
            elif name in more:
                sums[_titled(name, role)] += sample.value
    for role, total in blocks.items():
        if total:
            sums[_titled(_KV, role)] = used[role] / total
    return dict(sums)


def panels(series: dict[str, TimeSeries]) -> dict[str, dict[str, TimeSeries]]:
    """The series in groups, one group for each plot."""
    grouped: dict[str, dict[str, TimeSeries]] = defaultdict(dict)
    for title in sorted(series):
        grouped[title.partition(": ")[0]][title] = series[title]
    return dict(grouped)


def _titled(title: str, role: str) -> str:
    return f"{title}: {role}" if role else title
