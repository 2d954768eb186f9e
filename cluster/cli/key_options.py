"""The options of `tandem keys`."""

from __future__ import annotations

import argparse


def add_arguments(keys: argparse.ArgumentParser) -> None:
    """Declare the arguments of `tandem keys`."""
    keys.add_argument("action", choices=("add", "list", "remove"), help="what to do")
    keys.add_argument(
        "name", nargs="?", help="add: the tenant; remove: the first 8 digits or more of the hash"
    )
    operator = "`status`, `top`, `requests`, `explain`, `role`, `rollout`, `purge` and `stop`"
    for flag, text in (
        ("--operator", f"add: a key for {operator}"),
        ("--metrics", "add: a key for `/metrics` alone"),
    ):
        keys.add_argument(flag, metavar="NAME", help=text)
    where = keys.add_mutually_exclusive_group(required=True)
    where.add_argument("--file", metavar="FILE", help="the file of hashed keys")
    where.add_argument("--redis", metavar="URL", help="the Redis; see TANDEM_REDIS_PASSWORD")
    where.add_argument("--config", metavar="FILE", help="where this configuration has them")
    keys.add_argument(
        "--secret-file",
        metavar="FILE",
        help="with --redis: the cluster's secret (security.secret_file), which seals the keys",
    )
