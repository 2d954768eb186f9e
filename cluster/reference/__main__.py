"""Writes the pages: `python -m cluster.reference docs/reference`."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster.reference.pages import write_pages

if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
