"""Transports that their authors have not run say so, once in a process."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)
_said = set[str]()


def warn_unverified(transport: str) -> None:
    """Log it at the first call for each transport."""
    if transport not in _said:
        _said.add(transport)
        _log.warning(f"the {transport} transport is UNVERIFIED: it has not been run by its authors")
