"""The processes of a router without a model: two fake replicas, and the router before them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.router.bare_router import endless_model
from bench.router.site_tls import make_certificates
from bench.router.stream_load import Streams, streams_to
from cluster.deploy.child_processes import tied


@dataclass(frozen=True, slots=True)
class Site:
    """The processes, and the front ends of the router and of the prefill replica.

    `authority` is the file of the authority of the router's certificate, if it has one.
    """

    router: int
    decode: int
    front_ends: dict[str, str]
    prefill: dict[str, str]
    authority: str | None

    def streams(self, front_end: str) -> Streams:
        """A client of that front end of the router."""
        return streams_to(front_end, self.front_ends[front_end], self.authority)

    def direct(self, front_end: str) -> Streams:
        """A client of that front end of the prefill replica itself."""
        return streams_to(front_end, self.prefill[front_end])


@contextmanager
def site_of(
    url: str, prefill_ms: float, *, tls: bool = False, observed: Sequence[str] = ()
) -> Iterator[Site]:
    """Start the processes; a first token takes `prefill_ms`. `url` is that of a directory.

    With `tls` the router's front ends and the connections to replicas have TLS. `observed` are a
    folder for the files of the router's request log, and the collector of its traces.
    """
    module, took = "bench.router.fake_replicas", str(prefill_ms / 1000)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        model = endless_model(Path(folder))
        authority = make_certificates(Path(folder)) if tls else None
        _, read = stack.enter_context(process_of(module, url, "prefill", model, took))
        decode, read_decode = stack.enter_context(process_of(module, url, "decode", model, took))
        prefill, _ = read(), read_decode()
        with process_of("bench.router.bare_router", url, model, *observed) as (router, read):
            yield Site(router.pid, decode.pid, read(), prefill, authority)


@contextmanager
def process_of(
    module: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], dict[str, str]]]]:
    """Start a process that ends with its standard input; yields the lines that it prints.

    The kernel kills it when the thread that starts it ends.
    """
    command = tied([sys.executable, "-m", module, *arguments])
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdin is not None and process.stdout is not None
    lines = process.stdout
    try:
        yield process, lambda: json.loads(lines.readline())
    finally:
        process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
