"""The flags of `tandem chat` and `tandem generate` that say how an answer is sampled."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_client import Options


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="of the K likeliest")
    parser.add_argument("--top-p", type=float, metavar="P", help="of the likeliest, together P")
    parser.add_argument("--seed", type=int, help="equal seeds draw equal tokens")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="may be given repeatedly")
    parser.add_argument("--endpoint", metavar="NAME", help="default: the first one")
    text = "show how far it is, on a terminal, until the answer comes"
    parser.add_argument("--progress", action="store_const", const=True, help=text)
    text = "go on by itself where the connection breaks, and print the id of the stream"
    parser.add_argument("--resumable", action="store_const", const=True, help=text)
    parser.add_argument("--tenant", metavar="NAME", help="whose prompts it may share KV with")


def sampling_of(options: argparse.Namespace) -> Options:
    """The flags that were given, as options of the client."""
    sampling = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop")
    names = (*sampling, "endpoint", "tenant", "progress", "resumable")
    given = {name: getattr(options, name) for name in names}
    if given["stop"] is not None:
        given["stop"] = tuple(given["stop"])
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]
