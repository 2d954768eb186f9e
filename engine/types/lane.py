"""The lanes: priority classes that share the prompt tokens of a replica."""

from __future__ import annotations

from typing import Literal, get_args

Lane = Literal["interactive", "streaming", "scoring", "batch"]
LANES: tuple[Lane, ...] = get_args(Lane)
