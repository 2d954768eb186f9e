"""The options of `tandem keys`."""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(keys: argparse.ArgumentParser) -> None:
    """Declare the arguments of `tandem keys`."""
    keys.add_argument("action", choices=("add", "list", "remove"), help="what to do")
    text = "add: the tenant, operator or reader; remove: the first 8 digits or more of the hash"
    keys.add_argument("name", nargs="?", help=text)
    right: Any = keys.add_mutually_exclusive_group()
    for flag, text in (
        ("operator", "add: an operator's key, for `status`, `role`, `rollout` and `stop`"),
        ("metrics", "add: a key for `/metrics` alone"),
    ):
        right.add_argument(f"--{flag}", dest="right", action="store_const", const=flag, help=text)
    where = keys.add_mutually_exclusive_group(required=True)
    where.add_argument("--file", metavar="FILE", help="the file of hashed keys")
    where.add_argument("--redis", metavar="URL", help="the Redis; see TANDEM_REDIS_PASSWORD")
    where.add_argument("--config", metavar="FILE", help="where this configuration has them")
