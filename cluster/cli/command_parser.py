"""The parser of `tandem`, whose errors are one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Reports an error in the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """End with the error; see argparse."""
        self.exit(2, f"{self.prog}: {message}\n")


class VersionAction(argparse.Action):
    """Looks the version up only if `--version` is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the version and end."""
        from importlib.metadata import version

        print(f"tandem {version('tandem-serve')}")
        parser.exit()
