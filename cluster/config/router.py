"""The section `router`: where requests come in, and how many."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cluster.api.limits import MAX_REQUEST_BYTES
from cluster.parsing.answer_form import CallFormName, ReasoningFormName
from cluster.sockets import is_port
from engine.config import require

# As `api_keys`: the keys are in the Redis of the directory.
KEYS_IN_REDIS = "redis"
_HOST = r"\*|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_ORIGIN = r"\*|https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
# What a key opens: requests of a tenant, the calls of an operator, or `/metrics` alone.
Right = Literal["tenant", "operator", "metrics"]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Where the router listens and how much it takes on."""

    replicas: int = 1
    """Routers on the same ports. With two, one serves on while Ray Serve replaces the other. The
    chart has `pools.router.pods` instead.
    """
    host: str = "127.0.0.1"
    """The address on which the front ends listen."""
    http_port: int = 8000
    """The port of HTTP and WebSocket; 0 takes a free port."""
    grpc_port: int = 50051
    """The port of gRPC; 0 takes a free port."""
    max_message_bytes: int = MAX_REQUEST_BYTES
    """The size of one message or body."""
    max_requests: int = 1024
    """Choices in flight; more are refused with a retry time."""
    max_waiting: int = 256
    """Requests that wait in the router for capacity; more are refused."""
    kv_overcommit: float = 1.0
    """Blocks that are promised to requests, over the blocks of the decode pool; above 1 a request
    can be preempted.
    """
    hosts: tuple[str, ...] = ()
    """More names, or `*` for all, under which HTTP and WebSocket are called. It counts without
    `api_keys` only. IP addresses, `localhost`, the machine's name and `host` are always accepted.
    """
    origins: tuple[str, ...] = ()
    """Origins (`https://name`), or `*` for all, whose pages may call from a browser. Pages of the
    router's own origin always may.
    """
    api_keys: str | None = None
    """A file of hashed API keys, or `redis` for keys in the Redis of `directory.url`."""
    request_timeout_s: float = 600.0
    """One request, from arrival to its last token."""
    failover_timeout_s: float = 60.0
    """How long a request whose replica or KV was lost waits for another replica; 0 means that it
    fails at once.
    """
    tokenizer_threads: int = 2
    """Threads that tokenise."""
    tool_parser: CallFormName = "auto"
    """The form of the calls of tools in the model's answers; `auto` chooses it by the chat
    template, `none` leaves calls in the text.
    """
    reasoning_parser: ReasoningFormName = "auto"
    """The form of reasoning in the model's answers; `auto` chooses it by the chat template, `none`
    leaves reasoning in the text.
    """
    metric_tenants: int = 16
    """Tenants that the metrics tell apart, `default` and the configured ones first; the others are
    `other`.
    """

    def __post_init__(self) -> None:
        require(self.replicas >= 1, "replicas must be at least 1")
        require(bool(self.host), "host must not be empty")
        require(is_port(self.http_port), "http_port must be between 0 and 65535")
        require(is_port(self.grpc_port), "grpc_port must be between 0 and 65535")
        require(
            self.http_port == 0 or self.http_port != self.grpc_port,
            "http_port and grpc_port must differ",
        )
        require(
            all(re.fullmatch(_HOST, host) for host in self.hosts),
            "hosts must be names without a scheme or port, or *",
        )
        require(
            all(re.fullmatch(_ORIGIN, origin) for origin in self.origins),
            "origins must be as http://name or https://name:port, in lower case, or *",
        )
        require(self.max_message_bytes >= 1024, "max_message_bytes must be at least 1024")
        require(self.max_requests >= 1, "max_requests must be at least 1")
        require(self.max_waiting >= 0, "max_waiting must not be negative")
        require(self.kv_overcommit > 0, "kv_overcommit must be positive")
        require(self.request_timeout_s > 0, "request_timeout_s must be positive")
        require(self.failover_timeout_s >= 0, "failover_timeout_s must not be negative")
        require(self.tokenizer_threads >= 1, "tokenizer_threads must be at least 1")
        require(self.metric_tenants >= 0, "metric_tenants must not be negative")
