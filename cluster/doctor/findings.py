"""What was found of one subject, how bad it is, and what to change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cluster.display_text import plain


class Severity(StrEnum):
    """From `ok` to `error`: with an error Tandem cannot serve here as configured."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


_EXIT_CODES = {Severity.WARNING: 1, Severity.ERROR: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `change` says what to do, and is empty where all is well."""

    subject: str
    severity: Severity
    found: str
    change: str = ""


def exit_code(findings: Iterable[Finding]) -> int:
    """0 where all is well, 1 with a warning, 2 with an error."""
    return max((_EXIT_CODES.get(one.severity, 0) for one in findings), default=0)


def as_json(findings: Iterable[Finding]) -> str:
    """The findings as a JSON list."""
    return json.dumps([asdict(one) for one in findings], indent=2)


def as_text(findings: Iterable[Finding]) -> str:
    """The findings as lines; what to change stands below each."""
    lines = []
    for one in findings:
        lines.append(plain(f"{one.severity.value:7}  {one.subject}: {one.found}"))
        if one.change:
            lines.append(plain(f"         -> {one.change}"))
    return "\n".join(lines)


def looked_at(
    subject: str, look: Callable[..., Iterable[Finding]], *arguments: Any
) -> Iterator[Finding]:
    """What `look` finds. An error of its own is a warning, so that the others still look."""
    try:
        yield from look(*arguments)
    except Exception as error:
        reason = f"could not be looked at: {type(error).__name__}: {error}"
        yield Finding(subject, Severity.WARNING, reason)
