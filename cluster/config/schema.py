"""The configuration: one YAML document, one frozen section per package, nothing unknown.

The sections are plain dataclasses that check their own values; pydantic reads the document into
them. Precedence: flag (an override), file, default. A component receives its own section only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from cluster.config.autoscaling import ScalingConfig
from cluster.config.canary import CanaryConfig
from cluster.config.error_messages import describe
from cluster.config.source import merge_overrides, read_document
from cluster.config.tenant_limits import TenantConfig
from cluster.replica_record import Pool, ReplicaRole
from decode_pool.config import DecodeConfig
from engine.config import KvConfig, ModelConfig, is_hub_name, require
from engine.errors import ConfigError
from engine.types.lane import Lane
from kv_transfer.transports.registry import name_problem
from prefill_pool.config import PrefillConfig

DeploymentName = Literal["router", "prefill", "decode"]
StreamMode = Literal["tokens", "chunks", "progress", "whole"]

KEYS_IN_REDIS = "redis"
_BUNDLED_MODELS = ("demo",)


def _is_port(value: int) -> bool:
    return 0 <= value <= 65535


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
        require(_is_port(self.http_port), "http_port must be between 0 and 65535")
        require(_is_port(self.grpc_port), "grpc_port must be between 0 and 65535")
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


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """What one replica of a deployment gets of its node, and asks of Ray to be placed there.

    `per_device` replicas share the memory of a device. `resources` are Ray's custom resources:
    a node that offers `{tandem_decode: 1}` takes one replica that asks for it.
    """

    threads: int = 1
    gpus: float = 0.0
    per_device: int = 1
    resources: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be at least 1")
        require(self.gpus >= 0, "gpus must not be negative")
        require(self.per_device >= 1, "per_device must be at least 1")
        require(all(amount > 0 for amount in self.resources.values()), "resources must be positive")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster that runs the replicas; `address` null starts a local one.

    `drain_s` is what a replica that ends leaves its requests. For another version a deployment has
    `surge_percent` more replicas for a while; 0 replaces them one after the other. `shares` says
    what the replicas of a deployment get, in place of an even share of the cluster as it is at the
    start.
    """

    address: str | None = None
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = 8265
    ready_timeout_s: float = 300.0
    drain_s: float = 10.0
    surge_percent: int = 100
    shares: dict[DeploymentName, ShareConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.drain_s >= 0, "drain_s must not be negative")
        require(0 <= self.surge_percent <= 100, "surge_percent must be between 0 and 100")
        require(bool(self.dashboard_host), "dashboard_host must not be empty")
        require(_is_port(self.dashboard_port), "dashboard_port must be between 0 and 65535")
        require(self.ready_timeout_s > 0, "ready_timeout_s must be positive")


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """A token after the first two is held for `ms`, to be sent with those after it.

    At most `tokens` are sent together. One that comes `ms` after what was sent last is not held.
    """

    ms: float = 40.0
    tokens: int = 24

    def __post_init__(self) -> None:
        require(self.ms > 0, "ms must be positive; stream: tokens sends each token by itself")
        require(self.tokens >= 1, "tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """What one kind of traffic may expect and may ask for.

    Requests are admitted where first tokens come within `ttft_budget_ms` and the others at most
    `itl_budget_ms` apart; those of the `batch` lane wait, however late they are. With
    `decode.batching: window` alone, a decode batch may wait for `batch_window_ms` to fill; None:
    for `decode.window_ms`. `stream` says in which pieces a streamed answer comes
    (`cluster/config/stream_mode.py`); `flush` makes `chunks`. A `canary` serves a share of them as
    those of another endpoint.
    """

    lane: Lane = "interactive"
    ttft_budget_ms: float = 500.0
    itl_budget_ms: float = 60.0
    batch_window_ms: float | None = None
    max_output_tokens: int = 1024
    stream: StreamMode = "chunks"
    flush: FlushConfig = field(default_factory=FlushConfig)
    canary: CanaryConfig | None = None

    def __post_init__(self) -> None:
        require(self.ttft_budget_ms > 0, "ttft_budget_ms must be positive")
        require(self.itl_budget_ms > 0, "itl_budget_ms must be positive")
        require(
            self.batch_window_ms is None or self.batch_window_ms > 0,
            "batch_window_ms must be positive",
        )
        require(self.max_output_tokens >= 1, "max_output_tokens must be at least 1")
        require(
            self.stream == "chunks" or self.flush == FlushConfig(),
            f"flush is for stream: chunks, not {self.stream}",
        )

    @property
    def batch_window_s(self) -> float | None:
        """`batch_window_ms` in seconds."""
        return None if self.batch_window_ms is None else self.batch_window_ms / 1000


# Where none are configured: what people wait for, scoring, and work that nobody waits for.
ENDPOINTS: Mapping[str, EndpointConfig] = {
    "chat": EndpointConfig(),
    "score": EndpointConfig(lane="scoring", ttft_budget_ms=30_000),
    "batch": EndpointConfig(lane="batch", max_output_tokens=8192),
}


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    """The Redis that replicas share; `url` null starts a private one.

    Clusters of different namespaces in one Redis know nothing of each other.
    """

    url: str | None = None
    namespace: str = ""
    lease_s: float = 3.0
    heartbeat_s: float = 1.0

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9._-]{0,64}", self.namespace) is not None,
            "namespace must be at most 64 letters, digits, '.', '_' and '-'",
        )
        require(self.heartbeat_s > 0, "heartbeat_s must be positive")
        require(self.lease_s > self.heartbeat_s, "lease_s must be longer than heartbeat_s")


def _with_known_transport(kv: KvConfig) -> KvConfig:
    """The section itself; ValueError if no transport has the name in it."""
    problem = name_problem(kv.transport)
    require(problem is None, str(problem))
    return kv


@dataclass(frozen=True, slots=True)
class TandemConfig:
    """The whole configuration. The first endpoint is the default one."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    model: ModelConfig = field(default_factory=ModelConfig)
    kv: Annotated[KvConfig, AfterValidator(_with_known_transport)] = field(default_factory=KvConfig)
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    endpoints: dict[str, EndpointConfig] = field(default_factory=lambda: dict(ENDPOINTS))
    tenants: dict[str, TenantConfig] = field(default_factory=lambda: {"default": TenantConfig()})
    directory: DirectoryConfig = field(default_factory=DirectoryConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def __post_init__(self) -> None:
        require(bool(self.endpoints), "endpoints must name at least one endpoint")
        for pool, bounds in self.scaling.bounds.items():
            replicas = self.replicas[pool]
            require(
                bounds.min <= replicas <= bounds.max,
                f"{pool}.replicas must be within scaling.{pool}",
            )
        require(
            self.router.api_keys != KEYS_IN_REDIS or self.directory.url is not None,
            "router.api_keys: redis needs directory.url: the embedded Redis keeps nothing",
        )
        for name, endpoint in self.endpoints.items():
            _check_canary(name, endpoint, self.endpoints)

    @property
    def default_endpoint(self) -> str:
        """The endpoint of a request that names none."""
        return next(iter(self.endpoints))

    @property
    def promised_endpoints(self) -> dict[str, EndpointConfig]:
        """The endpoints as requests are admitted to them.

        One that must wait until a batch has ended is promised no time but its timeout, or
        nearly all that come while a batch runs would be refused.
        """
        if self.decode.batching == "continuous":
            return dict(self.endpoints)
        patient_ms = 1000 * self.router.request_timeout_s
        return {
            name: replace(endpoint, ttft_budget_ms=patient_ms)
            for name, endpoint in self.endpoints.items()
        }

    @property
    def local_prefill_tokens(self) -> int:
        """What a decode replica beside prefill replicas may compute of a prompt.

        Nothing where that would wait for a batch, so that first tokens do not.
        """
        return self.prefill.local_prefill_tokens if self.decode.batching == "continuous" else 0

    @property
    def replicas(self) -> dict[Pool, int]:
        """How many replicas each pool begins with."""
        return {"prefill": self.prefill.replicas, "decode": self.decode.replicas}

    @property
    def least_replicas(self) -> dict[Pool, int]:
        """How many replicas each pool must have."""
        return self.replicas | {pool: one.min for pool, one in self.scaling.bounds.items()}

    @property
    def most_replicas(self) -> dict[Pool, int]:
        """How many replicas each pool may come to have."""
        return self.replicas | {pool: one.max for pool, one in self.scaling.bounds.items()}

    @property
    def sleepers(self) -> frozenset[Pool]:
        """The pools that may have no replicas; where decode computes prompts, that is both."""
        found = self.scaling.sleepers
        return found if self.prefill.replicas or not found else frozenset(get_args(Pool))

    @property
    def decode_role(self) -> ReplicaRole:
        """What the replicas of `decode` do: `both` where nobody else computes prompts."""
        return "decode" if self.prefill.replicas else "both"

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data; `load_config` reads its YAML back to the same."""
        return asdict(self)


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> TandemConfig:
    """Read a YAML file, lay `overrides` (dotted key → value) over it, and check all of it.

    A model's folder and the file of keys come back absolute, as replicas run in other folders.
    Raises ConfigError.
    """
    document = read_document(Path(path)) if path is not None else {}
    document = merge_overrides(document, overrides or {})
    config = parse_config(document, source=str(path) if path is not None else "configuration")
    router, keys = config.router, config.router.api_keys
    if keys is not None and keys != KEYS_IN_REDIS:
        router = replace(router, api_keys=str(Path(keys).expanduser().absolute()))
    return replace(
        config, router=router, model=replace(config.model, path=located(config.model.path))
    )


def parse_config(document: Mapping[str, Any], source: str = "configuration") -> TandemConfig:
    """Plain data → configuration; ConfigError has one line for each thing that is wrong."""
    try:
        # In JSON mode strictness holds for values while mappings still become sections.
        return _ADAPTER.validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise ConfigError(describe(error, TandemConfig, source)) from None


def located(path: str) -> str:
    """`model.path` for a process in any folder: absolute, unless it is a name on the hub.

    A bundled name gives way to a local folder of that name, and so does a hub name.
    """
    local = Path(path).expanduser()
    if path in _BUNDLED_MODELS and not local.is_dir():
        import models

        return str(Path(models.__path__[0]).resolve() / path)
    return path if is_hub_name(path) and not local.is_dir() else str(local.absolute())


def _check_canary(
    name: str, endpoint: EndpointConfig, endpoints: Mapping[str, EndpointConfig]
) -> None:
    if endpoint.canary is None:
        return
    other = endpoint.canary.endpoint
    where = f"endpoints.{name}.canary.endpoint"
    require(other in endpoints, f"{where}: there is no endpoint {other!r}")
    require(other != name, f"{where} must be another endpoint")
    require(endpoints[other].canary is None, f"{where}: {other!r} has a canary itself")


_ADAPTER: TypeAdapter[TandemConfig] = TypeAdapter(TandemConfig)
