"""The rows in files: JSON lines, another file by size and by age, older files compressed.

    requests-ROUTER-TIME.jsonl        the present file of a router, locked while the router lives
    requests-ROUTER-TIME.jsonl.zst    the same file once it is complete; the oldest are removed

One thread writes, so that no disk delays a token.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from cluster.config.request_log import RequestLogConfig
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.gathered_queue import GatheredQueue
from cluster.telemetry.requests.row import RequestRow, whole
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

# Bound: rows that wait for the disk.
_MOST_WAITING = 10_000
# How long rows wait for others. A cancelled request hears meanwhile when its replicas are free.
GATHER_S = 1.0
# Bound: how long a router that ends waits for its last rows.
_CLOSE_S = 5.0
_LOG_EVERY_S = 60.0
_OPEN, _PACKED = ".jsonl", ".jsonl.zst"


class RowFiles:
    """Writes the rows of one router to a folder; `row_of` gives the row of a number.

    A row waits for others for `gather_s`.
    """

    def __init__(
        self,
        config: RequestLogConfig,
        folder: str,
        router: str,
        row_of: Callable[[int], RequestRow | None],
        gather_s: float = GATHER_S,
    ) -> None:
        self._config = config
        self._folder = Path(folder)
        self._prefix = f"requests-{quote(router, safe='')}-"
        self._row_of = row_of
        self._waiting: GatheredQueue[int] = GatheredQueue(_MOST_WAITING, gather_s)
        self._overflow = 0
        self._file: FileIO | None = None
        self._path = self._folder
        self._begun_s = 0.0
        self._faults = RareLog(log, "rows of the request log are lost", _LOG_EVERY_S)
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def put(self, number: int) -> None:
        """Write the row of that number soon; a row beyond the queue's bound is counted as lost."""
        if not self._waiting.put(number):
            self._overflow += 1

    def close(self) -> None:
        """Write what waits, for a bounded time, and end the present file."""
        self._waiting.end()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        self._attempt(0, self._begin)
        last = False
        while not last:
            numbers, last = self._waiting.take(self._left_s())
            if rows := self._rows(numbers):
                self._attempt(len(rows), partial(self._write, rows))
            if self._file is not None and (last or self._is_full(self._file)):
                self._attempt(0, self._rotate)

    def _left_s(self) -> float | None:
        """How long the present file may still grow; None without a file."""
        if self._file is None:
            return None
        return max(0.0, self._begun_s + self._config.file_s - time.monotonic())

    def _rows(self, numbers: list[int]) -> list[RequestRow]:
        overflow, self._overflow = self._overflow, 0
        found = [self._row_of(number) for number in numbers]
        if overflow + found.count(None):
            self._lost(overflow + found.count(None), "the disk is too slow")
        return [row for row in found if row is not None]

    def _begin(self) -> None:
        """Compress what routers that were killed have left in the folder."""
        self._make_folder()
        for path in sorted(self._folder.glob(f"requests-*{_OPEN}")):
            # Locked by a living router, or compressed by another one meanwhile.
            with suppress(BlockingIOError, FileNotFoundError), path.open() as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._pack(path)

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write(self, rows: list[RequestRow]) -> None:
        """Write all of the rows, or none of them: a full disk leaves no half of a line."""
        left = "".join(f"{json.dumps(whole(row))}\n" for row in rows).encode()
        if self._file is None:
            self._file = self._opened()
        before = os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(before)
            raise

    def _opened(self) -> FileIO:
        self._make_folder()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._path = self._folder / f"{self._prefix}{stamp}.{time.time_ns() % 10**9:09}{_OPEN}"
        # Its rows name tenants.
        number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._begun_s = time.monotonic()
        return FileIO(number, "a")

    def _is_full(self, file: FileIO) -> bool:
        """Whether the file is large or old enough, or was removed by somebody."""
        old = time.monotonic() - self._begun_s >= self._config.file_s
        found = os.fstat(file.fileno())
        return old or found.st_size >= self._config.file_bytes or not found.st_nlink

    def _rotate(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                self._pack(self._path)

    def _pack(self, path: Path) -> None:
        """Compress a file whose lock is held, and remove the oldest compressed ones."""
        import zstandard

        part = path.with_suffix(".part")
        with path.open("rb") as plain:  # first, because somebody may have removed it
            number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(number, "wb") as packed:
                zstandard.ZstdCompressor().copy_stream(plain, packed)
        part.replace(path.with_suffix(_PACKED))
        path.unlink()
        old = sorted(self._folder.glob(f"requests-*{_PACKED}"), key=lambda one: one.stat().st_mtime)
        for one in old[: -self._config.keep_files]:
            one.unlink(missing_ok=True)

    def _attempt(self, rows: int, work: Callable[[], None]) -> None:
        """Do it; where that fails the rows are lost, and the next ones are tried again."""
        try:
            work()
        except OSError as error:
            self._lost(rows, error.strerror or type(error).__name__)
        except Exception:
            log.exception("the files of the request log could not be written")
            self._lost(rows, "a fault")

    def _lost(self, rows: int, reason: str) -> None:
        metrics.ROWS_LOST.inc(rows)
        self._faults.note({"reason": reason, "folder": str(self._folder)})
