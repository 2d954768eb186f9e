"""The common arguments of all comparisons: the paths of models, peers and results."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench.core.model_135m import DEFAULT_SIZE, SIZES, make
from bench.core.results import RESULTS
from bench.systems.services import CliPaths
from cluster.config.schema import located


def add_paths(parser: argparse.ArgumentParser) -> None:
    """`--peers`, `--cache`, `--size`, `--results`, `--tandem`, and `--keep`, of the cache."""
    parser.add_argument("--keep", action="store_true", help="add to the figures of earlier runs")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"))
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--size", choices=SIZES, default=DEFAULT_SIZE, help="of the model")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tandem", type=Path, default=Path(sys.executable).with_name("tandem"))


def prepare(options: argparse.Namespace) -> CliPaths:
    """Make the model and the folder for logs, and have a SIGTERM end all started servers."""
    # As an exception, so that every `finally` runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.size != DEFAULT_SIZE:  # figures of another model are not kept with the results
        options.results /= options.size
        options.cache /= options.size
    logs = options.cache.absolute() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    model = make(logs.parent / f"model-{options.size}", SIZES[options.size])
    return CliPaths(model, options.peers.absolute(), options.tandem.absolute(), logs)


def demo_paths(options: argparse.Namespace) -> CliPaths:
    """The demo model, and a folder for logs. A SIGTERM ends the server, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logs = options.cache.absolute() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return CliPaths(Path(located("demo")), options.peers, options.tandem.absolute(), logs)


def open_record(options: argparse.Namespace, name: str) -> Path:
    """The file of the cache for measurements, empty unless figures are added to it."""
    record: Path = options.cache.absolute() / name
    if not options.keep:
        record.unlink(missing_ok=True)
    return record
