"""The sections `request_log` and `tracing`: what is kept and told of requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.config import require

_MIB = 1 << 20
_OTLP = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """The rows of requests that ended, which `tandem requests` and `tandem explain` show."""

    rows: int = 10_000
    """The last rows that each router has in memory, at most four choices per row on average."""
    folder: str | None = None
    """A folder for files of all rows, one JSON object a line. Older files are compressed (zstd)."""
    file_bytes: int = 64 * _MIB
    """The size at which a router begins another file."""
    file_s: float = 3600.0
    """The age at which a router begins another file."""
    keep_files: int = 100
    """Compressed files that stay in the folder, those of all its routers together; older ones are
    removed.
    """
    texts: bool = False
    """Rows have the beginnings of prompts and of first answers, 1,024 tokens of each."""
    prefill_price: float = 0.0
    """The price of one prefill replica for an hour, for the cost of each request."""
    decode_price: float = 0.0
    """The price of one decode replica for an hour. The requests in a decode step share it."""

    def __post_init__(self) -> None:
        require(1 <= self.rows <= 1_000_000, "rows must be between 1 and 1000000")
        require(self.folder is None or bool(self.folder), "folder must not be empty")
        require(self.file_bytes >= 1024, "file_bytes must be at least 1024")
        require(self.file_s >= 1, "file_s must be at least 1")
        require(self.keep_files >= 1, "keep_files must be at least 1")
        require(self.prefill_price >= 0, "prefill_price must not be negative")
        require(self.decode_price >= 0, "decode_price must not be negative")


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """A trace of each request by OpenTelemetry, sent by OTLP over gRPC. Off without `otlp`."""

    otlp: str | None = None
    """The collector, as `http://HOST:PORT`, or `https://HOST:PORT` with the system's certificates.
    Headers and other certificates come from the environment (`OTEL_EXPORTER_OTLP_HEADERS`).
    """
    share: float = 1.0
    """The share of the requests without a `traceparent` that is traced. Otherwise the client's flag
    decides.
    """
    most_per_s: float = 50.0
    """The most traces that a router begins in a second."""
    buffered_spans: int = 8192
    """Spans that wait for a slow collector; more are dropped."""

    def __post_init__(self) -> None:
        known = None if self.otlp is None else _OTLP.fullmatch(self.otlp)
        right = self.otlp is None or (known is not None and 1 <= int(known.group(1)) <= 65535)
        require(right, "otlp must be http://HOST:PORT or https://HOST:PORT")
        require(0 <= self.share <= 1, "share must be between 0 and 1")
        require(self.most_per_s > 0, "most_per_s must be positive")
        bounded = 64 <= self.buffered_spans <= 1_000_000
        require(bounded, "buffered_spans must be between 64 and 1000000")
