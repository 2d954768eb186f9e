"""docs/reference/cli.md: every command and option, from the parser of `tandem`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from cluster.cli.main import build_parser
from cluster.reference.markdown import code, table

_INTRODUCTION = """\
# Command line

`make reference` writes this page from the code. `tandem COMMAND --help` says the same.

A command that fails prints one line on stderr and exits with 2. `tandem status` exits with 1 where
something is unwell. A command that Ctrl-C ends exits with 130.
"""
_HEAD = ("argument", "default", "meaning")


def page() -> str:
    """The whole page."""
    parser = build_parser()
    parts = [_INTRODUCTION, _arguments(parser)]
    for command, meaning, inner in commands(parser):
        parts.append(f"## tandem {command}\n\n{meaning}\n\n{_arguments(inner)}")
    return "\n".join(parts)


def commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each command, with its line of help and its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                yield listed.dest, listed.help or "", action.choices[listed.dest]


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser, without `--help` and commands."""
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            yield action


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = [(_name(one), _default(one), _meaning(one)) for one in options(parser)]
    return table(_HEAD, rows) if rows else "It has no arguments.\n"


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        name = action.metavar or action.dest
        return code(f"[{name}]" if action.nargs == "?" else name)
    value = action.metavar or action.dest.upper()
    return code(action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}"))


def _default(action: argparse.Action) -> str:
    known = action.default not in (None, False, argparse.SUPPRESS)
    return code(action.default) if known else ""


def _meaning(action: argparse.Action) -> str:
    meaning = action.help or ""
    if action.choices is None:
        return meaning
    choices = ", ".join(code(choice) for choice in action.choices)
    return f"{meaning}: {choices}" if meaning else choices
