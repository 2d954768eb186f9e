"""One request on a terminal: a bar for each stage, and the words of `cluster/console/words.py`."""

from __future__ import annotations

from cluster.console.words import Row, goes_on, in_words, stage_name
from cluster.display_text import exact_time

_WIDTH = 40
_BAR, _TICK = "\N{FULL BLOCK}", "\N{LEFT ONE EIGHTH BLOCK}"


def explained(row: Row) -> str:
    """The whole text for one row of `tandem explain`."""
    words = in_words(row)
    lines = [*words["request"]]
    for choice in row["choices"]:
        title, *sentences = words[str(choice["choice"])]
        lines += ["", title, *waterfall(choice["stages"], choice.get("running_s"))]
        lines += [f"- {sentence}" for sentence in sentences]
    lines += [f"- {sentence}" for sentence in words["end"]]
    return "\n".join(lines)


def waterfall(stages: list[Row], present_s: float | None = None) -> list[str]:
    """A line for each stage: its bar, where it begins, and how long it takes.

    A stage that ends at `present_s` goes on.
    """
    if not stages:
        return []
    whole_s = max(one["end_s"] for one in stages) or 1.0
    names = [stage_name(one["stage"]) for one in stages]
    width = max(map(len, names))
    lines = []
    for name, one in zip(names, stages, strict=True):
        begin = round(_WIDTH * one["begin_s"] / whole_s)
        length = round(_WIDTH * one["end_s"] / whole_s) - begin
        bar = " " * begin + (_BAR * length or _TICK)
        took = f"{exact_time(one['end_s'] - one['begin_s']):>9}"
        took += " so far" if goes_on(one, present_s) else ""
        lines.append(f"  {name:{width}}  {bar:{_WIDTH + 1}}  {took}")
    return lines
