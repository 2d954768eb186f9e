"""Logs: one line per event, with its fields behind it, at the level TANDEM_LOG says.

    2026-11-21T08:00:00.123Z info cluster.router.router request accepted request_id=r-1 lane=batch

Fields are what a caller gives as `extra`. An exception is one line too, with the file and line
where it was raised; at the level debug its traceback follows.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from typing import TextIO

from engine.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
PACKAGES = (
    "cluster",
    "decode_pool",
    "engine",
    "kv_transfer",
    "prefill_pool",
    "protos",
    "tandem",
)
_SERVE = "ray.serve"
_LINE_ENDS = str.maketrans(
    {"\r": "\\r", "\n": "\\n", "\v": "\\u000b", "\f": "\\u000c", "\x1c": "\\u001c"}
    | {"\x1d": "\\u001d", "\x1e": "\\u001e", "\x85": "\\u0085"}
    | {"\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Renders a record as one line of text; it ends in the `replica`'s name, if there is one."""

    def __init__(self, replica: str = "") -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}"
        given = {
            key: value
            for key, value in vars(record).items()
            if key not in _STANDARD and not key.startswith("_")  # Ray adds one of its own
        }
        if record.exc_info and record.exc_info[1] is not None:
            given |= _error_fields(record.exc_info[1])
        given.setdefault("replica", self._replica)
        fields = "".join(f" {key}={_value(value)}" for key, value in given.items() if value != "")
        line = f"{head} {_escaped(record.getMessage())}{fields}"
        if record.exc_info and logging.getLogger("cluster").isEnabledFor(logging.DEBUG):
            line += "\n" + self.formatException(record.exc_info)
        return line


def level_from_environment(default: str = "warning") -> str:
    """The level in TANDEM_LOG; ConfigError for an unknown level."""
    level = os.environ.get("TANDEM_LOG", "").strip().lower() or default
    if level not in LEVELS:
        raise ConfigError(f"TANDEM_LOG: expected one of {', '.join(LEVELS)}, not {level!r}")
    return level


def configure_logging(
    level: str | None = None, stream: TextIO | None = None, replica: str = ""
) -> None:
    """Send the logs of our packages, at that level and above, to `stream` (None: stderr).

    Each line names the `replica` that this process is. A replica of Ray Serve also writes to the
    file that Serve keeps of it, which Ray's dashboard shows as the replica's log.
    """
    output = logging.StreamHandler(stream) if stream is not None else _Stderr()
    outputs: list[logging.Handler] = [output, *([_ServeFile()] if replica else [])]
    for one in outputs:
        one.setFormatter(LineFormatter(replica))
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers = outputs
        logger.setLevel((level or level_from_environment()).upper())
        logger.propagate = False


class _Stderr(logging.Handler):
    """Writes to the present `sys.stderr`, because an earlier one may have been closed."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _ServeFile(logging.Handler):
    """Hands whole lines to Serve's logger, whatever its level; it writes them to its file alone."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = logging.makeLogRecord(
                vars(record)
                | {"msg": self.format(record), "args": None, "exc_info": None, "exc_text": None}
            )
            line.log_to_stderr = False  # what Serve asks of a record; stderr has it already
            logging.getLogger(_SERVE).handle(line)
        except Exception:
            self.handleError(record)


def _error_fields(error: BaseException) -> dict[str, str]:
    fields = {"error": f"{type(error).__name__}: {error}"}
    if frames := traceback.extract_tb(error.__traceback__):
        fields["at"] = f"{frames[-1].filename}:{frames[-1].lineno}"
    return fields


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text and not any(char in ' "=\\' or not char.isprintable() for char in text)
    return text if plain else _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.translate(_LINE_ENDS)
