"""Small plots as SVG: lines, dots and crosses over one pair of axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Points = Sequence[tuple[float, float]]
Kind = Literal["line", "steps", "dots", "crosses"]

_WIDTH, _HEIGHT = 760.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 26.0, 34.0
_LEAST = 1e-12
_TICKS = 5
# Okabe and Ito's colours, which most colour-blind people can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
SHADE = "#f6d9c0"


@dataclass(frozen=True, slots=True)
class Mark:
    """One series of a plot."""

    name: str
    points: Points
    kind: Kind = "line"
    colour: str = COLOURS[0]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot; `shaded` stretches of x lie behind, `limits` are dashed lines across.

    The y axis begins at 0.
    """

    title: str
    x_title: str
    marks: Sequence[Mark]
    shaded: Sequence[tuple[float, float]] = ()
    limits: Sequence[float] = ()
    width_x: float | None = None

    def svg(self) -> str:
        """The SVG element."""
        points = [point for mark in self.marks for point in mark.points]
        right = _shown(self.width_x or max((x for x, _ in points), default=1.0))
        top = _shown(max([y for _, y in points] + list(self.limits), default=1.0))
        axes = _Axes(right, ticks(top)[-1])
        parts = [axes.shade(begin, end) for begin, end in self.shaded]
        parts += axes.frame(self.title, self.x_title)
        parts += [axes.across(limit) for limit in self.limits]
        parts += [axes.draw(mark) for mark in self.marks]
        parts += axes.legend([mark for mark in self.marks if mark.name])
        box = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(self.title)}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>'


def _shown(most: float) -> float:
    """The end of an axis; an empty axis ends at 1."""
    return most if most > _LEAST else 1.0


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to at least `top`, about five of them."""
    rough = top / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(size * magnitude for size in (1, 2, 5, 10) if size * magnitude >= rough * 0.999)
    count = math.ceil(top / step * 0.999)
    return [step * position for position in range(count + 1)]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps values to positions in the plot."""

    right: float
    top: float

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.right

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.top

    def frame(self, title: str, x_title: str) -> list[str]:
        parts = [_text(_LEFT, 15, title, "start", "title")]
        parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, x_title, "middle"))
        for value in ticks(self.top):
            y = self.y(value)
            parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"))
            parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", "end"))
        below = _HEIGHT - _BOTTOM + 14
        across = [value for value in ticks(self.right) if value <= self.right * 1.001]
        return parts + [_text(self.x(value), below, f"{value:g}", "middle") for value in across]

    def shade(self, begin: float, end: float) -> str:
        width = self.x(min(end, self.right)) - self.x(begin)
        height = _HEIGHT - _TOP - _BOTTOM
        box = f'x="{self.x(begin):.1f}" y="{_TOP:g}" width="{width:.1f}" height="{height:g}"'
        return f'<rect {box} fill="{SHADE}"/>'

    def across(self, value: float) -> str:
        return _line(_LEFT, self.y(value), _WIDTH - _RIGHT, self.y(value), "limit")

    def draw(self, mark: Mark) -> str:
        paths = [(self.x(x), self.y(y)) for x, y in mark.points]
        if mark.kind in ("line", "steps"):
            return _path(paths, mark.colour, stepped=mark.kind == "steps")
        one = _dot if mark.kind == "dots" else _cross
        return "".join(one(x, y, mark.colour) for x, y in paths)

    def legend(self, marks: Iterable[Mark]) -> list[str]:
        parts, right = [], _WIDTH - _RIGHT
        for mark in reversed(list(marks)):
            parts.append(_text(right, 15, mark.name, "end", fill=mark.colour))
            right -= 7.0 * len(mark.name) + 12
        return parts


def _path(paths: Points, colour: str, *, stepped: bool) -> str:
    if not paths:
        return ""
    (x, y), *rest = paths
    moves = [f"M{x:.1f} {y:.1f}"]
    for x, y in rest:
        moves.append(f"H{x:.1f}V{y:.1f}" if stepped else f"L{x:.1f} {y:.1f}")
    return f'<path d="{"".join(moves)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}" fill-opacity="0.8"/>'


def _cross(x: float, y: float, colour: str) -> str:
    arms = f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"
    return f'<path d="{arms}" stroke="{colour}" stroke-width="1.5"/>'


def _line(left: float, top: float, right: float, bottom: float, kind: str) -> str:
    ends = f'x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"'
    return f'<line {ends} class="{kind}"/>'


def _text(
    x: float, y: float, text: str, anchor: str, kind: str = "", fill: str | None = None
) -> str:
    colour = f' fill="{fill}"' if fill else ""
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"{colour}'
    return f"<text {position}>{escape(text)}</text>"
