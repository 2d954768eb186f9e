"""`tandem bench`: send a load to any OpenAI-compatible endpoint; write a JSON and an HTML file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.core.host_info import describe_machine
from bench.core.prompts import prompt_ids
from bench.load.client import Target, send_request
from bench.load.closed_loop import ServerTarget
from bench.load.html_report import run_page, summary_lines
from bench.load.http_recording import BadAnswer
from bench.load.metrics_poller import MetricsPoller
from bench.load.open_loop import Show
from bench.load.options import (
    add_arguments,
    read_budgets,
    read_load,
    read_rules,
    steady_load,
)
from bench.load.run_record import LoadRun, Sender
from bench.load.sweep import Curve, Step, knee_line, sweep_data, sweep_page
from cluster.client.connect_hint import connect_hint
from cluster.sockets import join
from cluster.work_progress import WorkProgress
from engine.errors import ConfigError, Unavailable

_REQUEST_S = 30.0
_WARM_TOKENS = 16


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises ConfigError or Unavailable."""
    _allow_connections()
    try:
        return asyncio.run(_sweep(options) if options.what == "sweep" else _run(options))
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None


async def _run(options: argparse.Namespace) -> int:
    load = read_load(options)
    server = await _server(options)
    say(f"{len(load.arrivals)} requests in {load.seconds:g} s: {load.title}")
    name, machine, watch = options.title or options.url, describe_machine(), _watch(options)
    with WorkProgress("bench", load.seconds, "s") as progress:
        found = await _sender(options, progress.at).send(name, server, load, machine, watch)
    _write(options.out, found.as_data(), run_page(found))
    return _report(found)


async def _sweep(options: argparse.Namespace) -> int:
    machine, name = describe_machine(), options.title or options.url
    beside = [Curve.read(json.loads(path.read_text())) for path in options.beside or ()]
    loads = [steady_load(options, rate) for rate in options.rates]
    server = await _server(options)
    steps = []
    with WorkProgress("sweep", sum(load.seconds for load in loads), "s") as progress:
        before_s = 0.0
        for rate, load in zip(options.rates, loads, strict=True):
            sender = _sender(options, partial(_show_step, progress, before_s, rate))
            found = await sender.send(name, server, load, machine, None)
            before_s += load.seconds
            steps.append(Step(rate, found.figures()))
            print(f"{rate:g}/s: {' '.join(summary_lines(found))}", flush=True)
    title = loads[0].title.partition("; ")[2]
    title = f"{title}, {options.step:g} s for each rate"
    document = sweep_page(name, title, steps, machine, beside)
    _write(options.out, sweep_data(name, steps, machine), document)
    print(knee_line(steps))
    return 0


def _allow_connections() -> None:
    """Allow as many open files as the system permits: each request in flight needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


async def _server(options: argparse.Namespace) -> ServerTarget:
    """The target of the load, after one short request that it must answer."""
    key = os.environ.get(options.key_env) if options.key_env else None
    if options.key_env and not key:
        raise ConfigError(f"{options.key_env} is not set")
    target = Target.at(options.url, key, options.tls_ca)
    extra: dict[str, object] = {"stream_options": {"include_usage": True}}
    if not options.stop_at_eos:
        extra["ignore_eos"] = True
    if options.endpoint:
        extra["endpoint"] = options.endpoint
    try:
        model = options.model or await first_model(target)
        server = ServerTarget(target, model, options.vocabulary, extra, options.chat)
        warm = prompt_ids(_WARM_TOKENS, options.vocabulary, f"{options.seed}/warm")
        with_ids = replace(server, extra=extra | {"return_token_ids": True})
        try:
            (await send_request(target, with_ids.completion(warm, 2), _REQUEST_S)).events()
            return with_ids
        except BadAnswer:
            # A server may refuse a field that it does not know.
            (await send_request(target, server.completion(warm, 2), _REQUEST_S)).events()
            return server
    except (OSError, BadAnswer) as error:
        reason = await connect_hint(join(target.host, target.port), target.tls, "https")
        reason = reason or str(error) or type(error).__name__
        if isinstance(error, BadAnswer) and error.status == b"401":
            reason = f"name the variable with an API key of this server: --key-env; {reason}"
        raise Unavailable(f"{options.url}: {reason}") from None


async def first_model(target: Target) -> str:
    """The name of the first model in the list; raises BadAnswer, OSError or TimeoutError."""
    answer = await send_request(target, target.get("/v1/models"), _REQUEST_S)
    try:
        return str(json.loads(answer.body())["data"][0]["id"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise BadAnswer("it lists no model") from None


def _sender(options: argparse.Namespace, show: Show) -> Sender:
    return Sender(rules=read_rules(options), budgets=read_budgets(options), show=show)


def _show_step(
    progress: WorkProgress, before_s: float, rate: float, passed_s: float, said: str
) -> None:
    progress.at(before_s + passed_s, f"{rate:g}/s", said)


def _watch(options: argparse.Namespace) -> MetricsPoller | None:
    key = os.environ.get("TANDEM_METRICS_KEY")
    targets = [Target.at(url, key, options.tls_ca) for url in options.metrics or ()]
    return MetricsPoller(targets, more=tuple(options.watch or ())) if targets else None


def _write(out: Path, data: dict[str, object], document: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    page = out.with_name(out.name + ".html")
    out.with_name(out.name + ".json").write_text(json.dumps(data, indent=1) + "\n")
    page.write_text(document)
    say(f"written: {page}, and the same as .json")


def _report(found: LoadRun) -> int:
    """Print the summary; returns 1 if no request was answered."""
    figures = found.figures()
    print("\n".join(summary_lines(found)))
    return 0 if figures.phases["all"].ttlt.count or figures.refusals.count else 1


def main() -> None:
    """Run as `tandem bench`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
