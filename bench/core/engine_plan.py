"""What is measured, and the figures that come of it; both travel between processes as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.core.statistics import Spread

PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Measurement:
    """`new_tokens`: for each number of concurrent streams, how many tokens each asks for.

    More than 64 where many prompts come first: all streams must run at once for long enough to
    measure it, also where prefill and decode are separate and the first one is far ahead by then.
    A column that has taken `column_s` is not repeated again.
    """

    prompt_tokens: int = 128
    new_tokens: dict[int, int] = field(default_factory=lambda: {1: 64, 8: 128, 32: 256})
    long_prompt: int = 1024
    repeats: int = 5
    column_s: float = 40.0

    @classmethod
    def read(cls, text: str) -> Measurement:
        """From what `write` wrote."""
        data = json.loads(text)
        data["new_tokens"] = {int(count): new for count, new in data["new_tokens"].items()}
        return cls(**data)

    def write(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    def rounds(self) -> Iterator[int]:
        """Numbers of the repeats of one column, the first in any case."""
        started = time.monotonic()
        for repeat in range(self.repeats):
            if repeat and time.monotonic() - started > self.column_s:
                return
            yield repeat


@dataclass(slots=True)
class Figures:
    """Tokens per second by column: `decode 8` for 8 streams at once, and `prefill`."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def decode(self, batch: int, rate: float) -> None:
        """Add one measurement."""
        self.columns.setdefault(decode_column(batch), []).append(rate)

    def prefill(self, rate: float) -> None:
        """Add one measurement."""
        self.columns.setdefault(PREFILL, []).append(rate)

    def spreads(self) -> dict[str, Spread]:
        """Each column's measurements."""
        return {name: Spread(tuple(values)) for name, values in self.columns.items()}

    @classmethod
    def read(cls, text: str) -> Figures:
        """From the last line of what a program printed."""
        return cls(json.loads(text.strip().splitlines()[-1]))

    def write(self) -> str:
        """As JSON on one line."""
        return json.dumps(self.columns)


def decode_column(batch: int) -> str:
    """The name of the column for that many streams."""
    return f"decode {batch}"
