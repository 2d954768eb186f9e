"""The section `router`: where requests come in, and how many."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.sockets import is_port
from engine.config import require

# As `api_keys`: the keys are in the Redis of the directory.
KEYS_IN_REDIS = "redis"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Where the router listens and how much it takes on. Port 0 means a free one.

    `max_requests` bounds the requests in flight; `max_waiting` those of them that wait here for
    room; `max_message_bytes` one message or body. The metrics tell `metric_tenants` tenants apart
    and count the others together. Requests are promised `kv_overcommit` times the
    decode pool's blocks. One whose replica was lost waits for another for `failover_timeout_s`;
    with 0 it fails. `api_keys` is a file of hashed keys (`cluster/tenants/api_keys.py`),
    or `redis`, where the directory has them.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 50051
    max_message_bytes: int = 4 * 1024 * 1024
    max_requests: int = 1024
    max_waiting: int = 256
    kv_overcommit: float = 1.0
    api_keys: str | None = None
    request_timeout_s: float = 600.0
    failover_timeout_s: float = 60.0
    tokenizer_threads: int = 2
    metric_tenants: int = 16

    def __post_init__(self) -> None:
        require(bool(self.host), "host must not be empty")
        require(is_port(self.http_port), "http_port must be between 0 and 65535")
        require(is_port(self.grpc_port), "grpc_port must be between 0 and 65535")
        require(
            self.http_port == 0 or self.http_port != self.grpc_port,
            "http_port and grpc_port must differ",
        )
        require(self.max_message_bytes >= 1024, "max_message_bytes must be at least 1024")
        require(self.max_requests >= 1, "max_requests must be at least 1")
        require(self.max_waiting >= 0, "max_waiting must not be negative")
        require(self.kv_overcommit > 0, "kv_overcommit must be positive")
        require(self.request_timeout_s > 0, "request_timeout_s must be positive")
        require(self.failover_timeout_s >= 0, "failover_timeout_s must not be negative")
        require(self.tokenizer_threads >= 1, "tokenizer_threads must be at least 1")
        require(self.metric_tenants >= 0, "metric_tenants must not be negative")
