"""The counters of links."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LinkCounters:
    """Totals of one side of one replica since its start; `links_open` is the current number."""

    links_open: int = 0
    links_opened: int = 0
    links_failed: int = 0
    links_refused: int = 0
    transfers_done: int = 0
    transfers_failed: int = 0
    bytes_moved: int = 0
    frames_announced: int = 0
    frames_discarded: int = 0
    checksum_errors: int = 0
