"""The metrics of KV transfers, on the receiving side."""

from __future__ import annotations

from engine.telemetry import Counter

TRANSFERS = Counter(
    "tandem_kv_transfers_total",
    "Transfers that ended: `committed`, `cancelled` or `failed`.",
    ("outcome",),
)
LINKS_BROKEN = Counter("tandem_kv_links_broken_total", "Links that broke, seen from either side.")
