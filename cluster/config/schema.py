"""The configuration: one YAML document, one frozen section per package, nothing unknown.

The sections are plain dataclasses that check their own values; pydantic reads the document into
them. Precedence: flag (an override), file, default. A component receives its own section only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from cluster.config.autoscaling import ScalingConfig
from cluster.config.deployment import DirectoryConfig, RayConfig
from cluster.config.endpoints import ENDPOINTS, EndpointConfig
from cluster.config.error_messages import describe
from cluster.config.journal import JournalConfig
from cluster.config.request_log import RequestLogConfig, TracingConfig
from cluster.config.router import KEYS_IN_REDIS, RouterConfig
from cluster.config.security import SecurityConfig
from cluster.config.source import merge_overrides, read_document
from cluster.config.tenant_limits import TenantConfig
from cluster.config.tls import TlsConfig
from cluster.replica_record import Pool, ReplicaRole
from decode_pool.config import DecodeConfig
from engine.config import KvConfig, ModelConfig, is_hub_name, require
from engine.errors import ConfigError
from kv_transfer.transports.registry import name_problem
from prefill_pool.config import PrefillConfig

_BUNDLED_MODELS = ("demo",)


def _with_known_transport(kv: KvConfig) -> KvConfig:
    """Return the section; raises ValueError if no transport has its name."""
    problem = name_problem(kv.transport)
    require(problem is None, str(problem))
    return kv


@dataclass(frozen=True, slots=True)
class TandemConfig:
    """The whole configuration."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    model: ModelConfig = field(default_factory=ModelConfig)
    """Which model is served, and in what precision."""
    kv: Annotated[KvConfig, AfterValidator(_with_known_transport)] = field(default_factory=KvConfig)
    """The KV blocks of each replica, and how they travel."""
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    """The pool that computes prompts."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """The pool that generates."""
    router: RouterConfig = field(default_factory=RouterConfig)
    """Where the router listens, and how much it takes on."""
    journal: JournalConfig = field(default_factory=JournalConfig)
    """Resumable streams."""
    request_log: RequestLogConfig = field(default_factory=RequestLogConfig)
    """The rows of requests that ended."""
    tracing: TracingConfig = field(default_factory=TracingConfig)
    """Traces of requests by OpenTelemetry."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The Ray cluster that runs the replicas."""
    endpoints: dict[str, EndpointConfig] = field(default_factory=lambda: dict(ENDPOINTS))
    """The kinds of traffic by name; the first is the default one. Without this section there are
    `chat`, `score` and `batch`.
    """
    tenants: dict[str, TenantConfig] = field(default_factory=lambda: {"default": TenantConfig()})
    """What tenants may have, by name; `default` stands for every tenant without a section."""
    directory: DirectoryConfig = field(default_factory=DirectoryConfig)
    """The Redis that replicas and routers share."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """Certificates, for connections that are encrypted."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    """How pools follow the load."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """What tells members of the cluster from others."""

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
        require(
            self.router.api_keys != KEYS_IN_REDIS or self.security.secret_file is not None,
            "router.api_keys: redis needs security.secret_file, which seals the keys; "
            "`tandem secret FILE` makes one",
        )
        require(
            self.tls.redis is None or (self.directory.url or "").startswith("rediss://"),
            "tls.redis needs directory.url to begin with rediss://",
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

        A request that waits until a batch has ended is promised its timeout only. Otherwise
        nearly all requests that arrive while a batch runs would be refused.
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
        """The most prompt tokens that a decode replica beside prefill replicas may compute.

        It is 0 where local prefill would wait for a batch, so that first tokens do not wait.
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
        """The role of the replicas of `decode`: `both` where there are no prefill replicas."""
        return "decode" if self.prefill.replicas else "both"

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data; `load_config` reads its YAML back to the same."""
        return asdict(self)


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> TandemConfig:
    """Read a YAML file, lay `overrides` (dotted key → value) over it, and check all of it.

    The paths of the model, the keys, the secret, the certificates and the request log come back
    absolute, as replicas run in other folders. Raises ConfigError.
    """
    document = read_document(Path(path)) if path is not None else {}
    document = merge_overrides(document, overrides or {})
    config = parse_config(document, source=str(path) if path is not None else "configuration")
    router, keys = config.router, config.router.api_keys
    if keys is not None and keys != KEYS_IN_REDIS:
        router = replace(router, api_keys=_absolute(keys))
    security = config.security
    if security.secret_file is not None:
        security = replace(security, secret_file=_absolute(security.secret_file))
    rows = config.request_log
    if rows.folder is not None:
        rows = replace(rows, folder=_absolute(rows.folder))
    model, tls = replace(config.model, path=located(config.model.path)), config.tls.located()
    return replace(config, router=router, model=model, security=security, tls=tls, request_log=rows)


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


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


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
