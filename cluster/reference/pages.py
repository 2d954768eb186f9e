"""Every generated page, by the name of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.reference import cli, configuration, errors, limits, metrics, refusals, row_fields

PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.page,
    "metrics.md": metrics.page,
    "refusals.md": refusals.page,
    "row-fields.md": row_fields.page,
    "limits.md": limits.page,
    "errors.md": errors.page,
    "cli.md": cli.page,
}


def write_pages(folder: Path) -> None:
    """Write all pages; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


def stale_pages(folder: Path) -> list[str]:
    """The names of the pages that are missing or differ from the code."""
    return [name for name, page in PAGES.items() if _read(folder / name) != page()]


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None
