"""The section `request_log`: the rows of requests that ended."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import require

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """The rows of requests that ended, which `tandem requests` and `tandem explain` show."""

    rows: int = 10_000
    """The last rows that each router has in memory."""
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
