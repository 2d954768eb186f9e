"""Values as text for people: on one line of a terminal, and times with as many digits as serve."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
_MINUTE_S = 60.0


def plain(value: object, unprintable: str = _UNPRINTABLE) -> str:
    """A value as one line for a terminal, on which no character of it acts."""
    return "".join(char if char.isprintable() else unprintable for char in str(value))


def exact_time(seconds: float) -> str:
    """A measured time: `12.3 ms`, `123 ms`, `1.25 s`, `2.0 min`.

    The console's page does the same, in `seconds` of `cluster/console/static/format.js`.
    """
    size_s = abs(seconds)
    if size_s < 0.0995:
        return f"{_fixed(1000 * seconds, 1)} ms"
    if size_s < 0.9995:
        return f"{_fixed(1000 * seconds, 0)} ms"
    if size_s < 99.5:
        return f"{_fixed(seconds, 2)} s"
    return f"{_fixed(seconds / _MINUTE_S, 1)} min"


def known_time(seconds: float | None) -> str:
    """A measured time, or `-` where there is none."""
    return "-" if seconds is None else exact_time(seconds)


def long_time(seconds: float) -> str:
    """A long time: `95 s`, and from 3 minutes on `5 min`.

    The console's page does the same, in `lasting` of `cluster/console/static/format.js`.
    """
    if seconds < 3 * _MINUTE_S:
        return f"{_fixed(seconds, 0)} s"
    return f"{_fixed(seconds / _MINUTE_S, 0)} min"


def _fixed(value: float, digits: int) -> str:
    """The value with so many decimals; what is halfway goes away from zero, as a page has it."""
    with localcontext(rounding=ROUND_HALF_UP):
        return f"{Decimal(value):.{digits}f}"
