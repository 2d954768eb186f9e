"""The command `tandem`, with a sub-command for each task.

Errors are one line on stderr and exit code 2; `status` exits with 1 when something is unwell.
Each command imports the heavy modules that it needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cluster.cli.command_parser import CommandParser, VersionAction
from cluster.cli.doctor import add_doctor
from cluster.cli.requests import add_requests
from cluster.cli.sampling_options import add_sampling
from cluster.cli.standard_streams import open_closed_streams
from cluster.cli.tls_options import add_tls, router_addresses, tls_ca
from cluster.cli.top import add_top
from engine.errors import TandemError, Unavailable

if TYPE_CHECKING:
    from tandem_client.router_address import RouterAddress

DEFAULT_ADDRESS = "127.0.0.1:50051"
_SERVE_FLAGS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "prefill_replicas": "prefill.replicas",
    "decode_replicas": "decode.replicas",
    "host": "router.host",
    "port": "router.http_port",
    "grpc_port": "router.grpc_port",
    "dashboard_port": "ray.dashboard_port",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    open_closed_streams()
    options = build_parser().parse_args(arguments)
    try:
        from cluster.telemetry.logging_setup import configure_logging

        configure_logging()
        if hasattr(options, "address"):
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core prints each failed handshake
            options.addresses = router_addresses(options)
            options.address = options.addresses[0]
        return int(options.run(options))
    except TandemError as error:
        print(f"tandem: {' | '.join(error.message.splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of stdout has gone. Without this Python would fail when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _serve(options: argparse.Namespace) -> int:
    from cluster.config.schema import load_config
    from cluster.deploy.launcher import Launcher

    given = {key: getattr(options, flag) for flag, key in _SERVE_FLAGS.items()}
    overrides = {key: value for key, value in given.items() if value is not None}
    Launcher(load_config(options.config, overrides)).run()
    return 0


def _status(options: argparse.Namespace) -> int:
    import json

    from cluster.cli.status_table import as_data, as_table_here, healthy
    from cluster.client.admin_client import fetch_status

    try:
        with _router_at(options.address):
            status = asyncio.run(fetch_status(options.address))
    except Unavailable as error:
        print(f"tandem: {error.message}", file=sys.stderr)
        return 1
    print(json.dumps(as_data(status), indent=2) if options.json else as_table_here(status))
    return 0 if healthy(status) else 1


def _stop(options: argparse.Namespace) -> int:
    from cluster.client.admin_client import request_stop

    with _router_at(options.address):
        asyncio.run(request_stop(options.address))
    print("stop requested; `tandem serve` ends when its replicas have")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from bench.load.command import run

    options.tls_ca = tls_ca(options)
    return run(options)


def _secret(options: argparse.Namespace) -> int:
    from protos.wire.secret import made

    print(f"{made(options.file)}: copy it to the same place on every host")
    return 0


def _role(options: argparse.Namespace) -> int:
    from cluster.client.admin_client import request_role

    with _router_at(options.address):
        before = asyncio.run(request_role(options.address, options.replica, options.role))
    print(f"{options.replica}: {before} -> {options.role}")
    return 0


def _found(module: str, name: str = "run") -> Callable[[argparse.Namespace], int]:
    """The function of that name in a module of `cluster.cli`, which is imported when it runs."""

    def run(options: argparse.Namespace) -> int:
        return int(getattr(import_module(f"cluster.cli.{module}"), name)(options))

    return run


def _calling(module: str, name: str = "run") -> Callable[[argparse.Namespace], int]:
    """The same for a command that calls a router."""
    found = _found(module, name)

    def run(options: argparse.Namespace) -> int:
        with _router_at(options.address):
            return found(options)

    return run


class _router_at:  # noqa: N801
    """Adds to an Unavailable the address that was tried, and what to do, where that is known."""

    def __init__(self, address: RouterAddress) -> None:
        self._address = address

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Unavailable):
            from cluster.client.connect_hint import router_hint

            hint = asyncio.run(router_hint(self._address))
            raise Unavailable(f"router at {self._address}: {hint or error.message}") from None


def build_parser() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    parser = CommandParser(
        prog="tandem",
        description="Serve a language model from a prefill pool and a decode pool.",
        epilog="TANDEM_LOG=debug|info|warning|error sets what is logged, in replicas too.",
    )
    parser.add_argument(
        "--version", action=VersionAction, nargs=0, help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_generation(commands)
    status = _add_client(commands, "status", _status, "Show every replica; exit 1 if one is lost.")
    status.add_argument("--json", action="store_true", help="print JSON")
    role = _add_client(commands, "role", _role, "Give a replica another role while it runs.")
    role.add_argument("replica", metavar="REPLICA", help="its id, as `tandem status` shows it")
    role.add_argument("role", metavar="ROLE", help="prefill, decode or both")
    text = "Another model or configuration for a cluster of `tandem serve`, as it serves."
    rollout = _add_client(commands, "rollout", _calling("rollout"), text)
    rollout.add_argument("--config", metavar="FILE", help="the YAML configuration, all of it")
    rollout.add_argument("--model", metavar="PATH", help="folder of the model")
    text = "allow fewer keys, certificates or limits on who may call, and print what that is"
    rollout.add_argument("--weaken-security", action="store_true", help=text)
    rollout.set_defaults(restart=False)
    text = "Replace all replicas and routers of `tandem serve` by new ones, as it serves."
    _add_client(commands, "restart", _calling("rollout"), text).set_defaults(restart=True)
    purge = _add_client(commands, "purge", _calling("purge"), "Purge the cached KV of a tenant.")
    purge.add_argument("tenant", metavar="TENANT", help="whose cached KV is hidden and overwritten")
    _add_requests(commands)
    _add_client(commands, "stop", _stop, "End the cluster that `tandem serve` started.")
    _add_keys(commands)
    text = "Look at this machine, a configuration, its model; exit 1: warnings, 2: errors."
    look = commands.add_parser("doctor", help=text, description=text)
    look.set_defaults(run=_found("doctor", "doctor"))
    add_doctor(look)
    text = "Make the secret of a cluster on several hosts (security.secret_file)."
    secret = commands.add_parser("secret", help=text, description=text)
    secret.set_defaults(run=_secret)
    secret.add_argument("file", metavar="FILE", help="a new file, readable for this user alone")
    _add_batch(commands)
    _add_bench(commands)
    return parser


def _add_generation(commands: Any) -> None:
    chat = _add_client(
        commands, "chat", _calling("ask", "chat"), "Talk with the model.", several=True
    )
    chat.add_argument("prompt", nargs="?", help="ask this and exit; without it, a conversation")
    chat.add_argument("--system", help="a system message to begin with")
    add_sampling(chat)
    generate = _add_client(
        commands, "generate", _calling("ask", "generate"), "Continue a text.", several=True
    )
    generate.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    generate.add_argument("--timing", action="store_true", help="print timings to stderr")
    add_sampling(generate)
    text = "Print the rest of a resumable stream."
    resume = _add_client(commands, "resume", _calling("ask", "resume"), text, several=True)
    resume.add_argument("stream", metavar="ID", help="its id, as `--resumable` prints it")
    text = "the tokens of each choice that you have; default: none"
    resume.add_argument("--have", type=int, nargs="+", metavar="N", help=text)


def _add_requests(commands: Any) -> None:
    text = "List requests that ended on all routers: when, where, and how long each stage took."
    listed = _add_client(
        commands, "requests", _calling("requests", "list_requests"), text, several=True
    )
    text = "Watch pools, replicas, endpoints, tenants and the slowest requests."
    add_top(_add_client(commands, "top", _calling("top", "top"), text, several=True))
    text = "Show where the time of one request went, and what it waited behind."
    explained = _add_client(
        commands, "explain", _calling("requests", "explain"), text, several=True
    )
    add_requests(listed, explained)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="Start a cluster on this machine and stay.")
    serve.set_defaults(run=_serve)
    serve.add_argument("--config", metavar="FILE", help="the YAML configuration")
    serve.add_argument("--model", metavar="PATH", help="folder of the model (default: demo)")
    serve.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    serve.add_argument("--prefill-replicas", type=int, metavar="N", help="0: one pool")
    serve.add_argument("--decode-replicas", type=int, metavar="N", help="replicas that generate")
    serve.add_argument("--host", help="where the router listens (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, help="HTTP port (default: 8000; 0: a free one)")
    serve.add_argument("--grpc-port", type=int, metavar="PORT", help="gRPC port (default: 50051)")
    serve.add_argument("--dashboard-port", type=int, metavar="PORT", help="default: 8265")


def _add_batch(commands: Any) -> None:
    from cluster.cli.batch import add_arguments

    text = "Do a file of requests in OpenAI's batch form; what is done stays done."
    batch = commands.add_parser("batch", help=text, description=text)
    batch.set_defaults(run=_found("batch"))
    add_arguments(batch)


def _add_bench(commands: Any) -> None:
    from bench.load.options import add_arguments

    text = "Send an open-loop load to an OpenAI-compatible endpoint and report what became of it."
    bench = commands.add_parser("bench", help=text, description=text)
    bench.set_defaults(run=_bench)
    add_arguments(bench)


def _add_keys(commands: Any) -> None:
    from cluster.cli.key_options import add_arguments

    text = "Make, list and remove API keys, while routers run."
    keys = commands.add_parser("keys", help=text, description=text)
    keys.set_defaults(run=_found("keys"))
    add_arguments(keys)
    add_tls(keys)


def _add_client(
    commands: Any, name: str, run: Any, text: str, *, several: bool = False
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, several=several)
    more = "; of several routers, with commas between" if several else ""
    parser.add_argument(
        "--address",
        default=DEFAULT_ADDRESS,
        help=f"the router's gRPC ({DEFAULT_ADDRESS}); grpcs://host:port with TLS{more}",
    )
    add_tls(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
