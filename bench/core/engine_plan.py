"""The plan of a measurement, and its figures; processes exchange both as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.core.statistics import Spread

PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The plan: `new_tokens` has the tokens of each stream by the number of concurrent streams.

    With many prompts it is more than 64, because all streams must run at once for long enough.
    Where prefill and decode are separate, the first stream is far ahead by then.
    A column that has taken `column_s` is not repeated again.
    """

    prompt_tokens: int = 128
    new_tokens: dict[int, int] = field(default_factory=lambda: {1: 64, 8: 128, 32: 256})
    long_prompt: int = 1024
    repeats: int = 5
    column_s: float = 40.0

    @classmethod
    def read(cls, text: str) -> Measurement:
        """Read a plan that `write` wrote."""
        data = json.loads(text)
        data["new_tokens"] = {int(count): new for count, new in data["new_tokens"].items()}
        return cls(**data)

    def write(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    def rounds(self) -> Iterator[int]:
        """The numbers of the repeats of one column; there is at least one."""
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
        """Read the figures in the last line of a program's output."""
        return cls(json.loads(text.strip().splitlines()[-1]))

    def write(self) -> str:
        """The figures as JSON on one line."""
        return json.dumps(self.columns)


def decode_column(batch: int) -> str:
    """The name of the column for that many streams."""
    return f"decode {batch}"
