"""The meaning of each key: the docstring below its field. Only generators of pages read it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, get_args, get_type_hints


def descriptions(section: type[Any]) -> dict[str, str]:
    """The meaning of each key of a section; ValueError names keys that have none."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for item, below in pairwise(node.body):
        match item, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    if silent := [item.name for item in fields(section) if item.name not in found]:
        raise ValueError(f"{section.__name__} does not say what {', '.join(silent)} mean")
    return found


def section_in(hint: Any) -> type[Any] | None:
    """The section in a key of this type: a section, an optional one, or sections by name."""
    for part in (hint, *get_args(hint)):
        if is_dataclass(part) and isinstance(part, type):
            return part
    return None


def all_sections(root: type[Any]) -> Iterator[type[Any]]:
    """A section and all sections in it; a section in several places comes several times."""
    yield root
    for hint in get_type_hints(root).values():
        if (inner := section_in(hint)) is not None:
            yield from all_sections(inner)
