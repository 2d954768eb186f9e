"""The ports of the router, the Redis of the directory, and the clocks of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from cluster.config.schema import TandemConfig
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_client import answered, open_client
from cluster.display_text import exact_time
from cluster.doctor.findings import Finding, Severity
from cluster.sockets import bound_socket
from engine.errors import ConfigError, TandemError

_TIMEOUT_S = 3.0
_OLDEST_REDIS = (6, 2)
# A command of the directory or the journal waits for this answer.
_SLOW_S = 0.005
# Leases live seconds; rows and traces of several hosts are compared by their clocks.
_CLOCK_S = 0.5


def look_at_ports(config: TandemConfig) -> Iterator[Finding]:
    """Whether the ports that `tandem serve` opens are free."""
    router, ray = config.router, config.ray
    wanted = [
        ("HTTP", router.host, router.http_port, "--port"),
        ("gRPC", router.host, router.grpc_port, "--grpc-port"),
        ("dashboard", ray.dashboard_host, ray.dashboard_port, "--dashboard-port"),
    ]
    for name, host, port, flag in wanted:
        try:
            bound_socket(host, port).close()
        except ConfigError as error:
            change = f"end what listens there (perhaps a cluster that serves), or set {flag}"
            yield Finding(f"{name} port", Severity.WARNING, error.message, change)
        else:
            yield Finding(f"{name} port", Severity.OK, f"{host}:{port} is free")


def look_at_redis(config: TandemConfig) -> Iterator[Finding]:
    """The configured Redis: its version, its answer time, what it evicts, and its clock."""
    if config.directory.url is None:
        yield Finding("Redis", Severity.OK, "a private one, started with the cluster")
        return
    try:
        yield from asyncio.run(_redis(config))
    except TandemError as error:
        change = "look at directory.url, TANDEM_REDIS_PASSWORD and tls.redis"
        yield Finding("Redis", Severity.ERROR, error.message, change)


async def _redis(config: TandemConfig) -> list[Finding]:
    client = open_client(config.directory, _TIMEOUT_S, config.tls.redis or RedisTlsConfig())
    try:
        server = await answered(client.info("server"), _TIMEOUT_S)
        memory = await answered(client.info("memory"), _TIMEOUT_S)
        asked_s, asked_at = time.perf_counter(), time.time()
        seconds, microseconds = await answered(client.time(), _TIMEOUT_S)
        took_s = time.perf_counter() - asked_s
    finally:
        await client.aclose()
    version = str(server.get("redis_version", "0"))
    found = [judged_version(version), judged_speed(took_s), judged_eviction(memory)]
    ahead_s = int(seconds) + int(microseconds) / 1e6 - (asked_at + took_s / 2)
    return [*found, judged_clock(ahead_s)]


def judged_version(version: str) -> Finding:
    """The version of a Redis."""
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_REDIS:
        return Finding("Redis", Severity.ERROR, version, "6.2 or newer")
    return Finding("Redis", Severity.OK, version)


def judged_speed(took_s: float) -> Finding:
    """The time that an answer took."""
    what = f"answers in {exact_time(took_s)}"
    if took_s > _SLOW_S:
        change = "a Redis nearer to the routers: resumable streams wait for its answers"
        return Finding("Redis", Severity.WARNING, what, change)
    return Finding("Redis", Severity.OK, what)


def judged_eviction(memory: dict[str, object]) -> Finding:
    """What a Redis drops when it is full, from its `INFO memory`."""
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and int(str(memory.get("maxmemory", 0))):
        change = "maxmemory-policy noeviction: a lease that is evicted takes its replica away"
        return Finding("Redis", Severity.WARNING, f"evicts keys ({policy})", change)
    return Finding("Redis", Severity.OK, "evicts no keys")


def judged_clock(ahead_s: float) -> Finding:
    """The clock of Redis against that of this machine."""
    what = f"Redis and this machine differ by {exact_time(abs(ahead_s))}"
    if abs(ahead_s) > _CLOCK_S:
        return Finding("clock", Severity.WARNING, what, "run chrony or ntpd on every host")
    return Finding("clock", Severity.OK, what)
