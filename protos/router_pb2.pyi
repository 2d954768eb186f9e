from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("replicas", "missing", "canaries", "config", "rollout", "starting")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CANARIES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    missing: _containers.RepeatedScalarFieldContainer[str]
    canaries: _containers.RepeatedCompositeFieldContainer[CanaryStatus]
    config: str
    rollout: RolloutStatus
    starting: _containers.RepeatedCompositeFieldContainer[StartingReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ..., canaries: _Optional[_Iterable[_Union[CanaryStatus, _Mapping]]] = ..., config: _Optional[str] = ..., rollout: _Optional[_Union[RolloutStatus, _Mapping]] = ..., starting: _Optional[_Iterable[_Union[StartingReplica, _Mapping]]] = ...) -> None: ...

class StartingReplica(_message.Message):
    __slots__ = ("id", "role", "stage", "progress", "done", "total", "unit", "left_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: str
    stage: str
    progress: str
    done: int
    total: int
    unit: str
    left_s: float
    def __init__(self, id: _Optional[str] = ..., role: _Optional[str] = ..., stage: _Optional[str] = ..., progress: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., unit: _Optional[str] = ..., left_s: _Optional[float] = ...) -> None: ...

class RolloutStatus(_message.Message):
    __slots__ = ("id", "version", "state", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: str
    state: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CanaryStatus(_message.Message):
    __slots__ = ("endpoint", "served_as", "share", "rolled_back", "arms")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SERVED_AS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    served_as: str
    share: float
    rolled_back: str
    arms: _containers.RepeatedCompositeFieldContainer[ArmStatus]
    def __init__(self, endpoint: _Optional[str] = ..., served_as: _Optional[str] = ..., share: _Optional[float] = ..., rolled_back: _Optional[str] = ..., arms: _Optional[_Iterable[_Union[ArmStatus, _Mapping]]] = ...) -> None: ...

class ArmStatus(_message.Message):
    __slots__ = ("name", "requests", "failed", "ttft_p95_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: int
    failed: int
    ttft_p95_s: float
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., ttft_p95_s: _Optional[float] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("id", "role", "address", "healthy", "waiting", "running", "blocks", "start_s", "leaving", "config", "prefill_s", "step_s", "slow")
    class StartSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: str
    address: str
    healthy: bool
    waiting: int
    running: int
    blocks: BlockCounts
    start_s: _containers.ScalarMap[str, float]
    leaving: bool
    config: str
    prefill_s: float
    step_s: float
    slow: str
    def __init__(self, id: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., healthy: bool = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., blocks: _Optional[_Union[BlockCounts, _Mapping]] = ..., start_s: _Optional[_Mapping[str, float]] = ..., leaving: bool = ..., config: _Optional[str] = ..., prefill_s: _Optional[float] = ..., step_s: _Optional[float] = ..., slow: _Optional[str] = ...) -> None: ...

class BlockCounts(_message.Message):
    __slots__ = ("total", "used", "cached", "leased", "quarantined", "orphaned")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    total: int
    used: int
    cached: int
    leased: int
    quarantined: int
    orphaned: int
    def __init__(self, total: _Optional[int] = ..., used: _Optional[int] = ..., cached: _Optional[int] = ..., leased: _Optional[int] = ..., quarantined: _Optional[int] = ..., orphaned: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RolloutRequest(_message.Message):
    __slots__ = ("configuration", "weaken_security", "restart")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    WEAKEN_SECURITY_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    configuration: str
    weaken_security: bool
    restart: bool
    def __init__(self, configuration: _Optional[str] = ..., weaken_security: bool = ..., restart: bool = ...) -> None: ...

class RolloutResponse(_message.Message):
    __slots__ = ("id", "weakens", "notices")
    ID_FIELD_NUMBER: _ClassVar[int]
    WEAKENS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    id: str
    weakens: _containers.RepeatedScalarFieldContainer[str]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., weakens: _Optional[_Iterable[str]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class GiveRoleRequest(_message.Message):
    __slots__ = ("replica", "role")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    role: str
    def __init__(self, replica: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class GiveRoleResponse(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: str
    def __init__(self, before: _Optional[str] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("blocks", "failed", "streams")
    class BlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.ScalarMap[str, int]
    failed: _containers.ScalarMap[str, str]
    streams: int
    def __init__(self, blocks: _Optional[_Mapping[str, int]] = ..., failed: _Optional[_Mapping[str, str]] = ..., streams: _Optional[int] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("request_id", "endpoint", "tenant", "failed", "since_s", "slowest", "limit", "rises", "choices", "figures", "answered")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RISES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    endpoint: str
    tenant: str
    failed: bool
    since_s: float
    slowest: bool
    limit: int
    rises: bool
    choices: bool
    figures: bool
    answered: bool
    def __init__(self, request_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., tenant: _Optional[str] = ..., failed: bool = ..., since_s: _Optional[float] = ..., slowest: bool = ..., limit: _Optional[int] = ..., rises: bool = ..., choices: bool = ..., figures: bool = ..., answered: bool = ...) -> None: ...

class EndpointFigures(_message.Message):
    __slots__ = ("endpoint", "requests", "refused", "failed", "ttft_s", "itl_p95_s")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    ITL_P95_S_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    requests: int
    refused: int
    failed: int
    ttft_s: _containers.RepeatedScalarFieldContainer[float]
    itl_p95_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, endpoint: _Optional[str] = ..., requests: _Optional[int] = ..., refused: _Optional[int] = ..., failed: _Optional[int] = ..., ttft_s: _Optional[_Iterable[float]] = ..., itl_p95_s: _Optional[_Iterable[float]] = ...) -> None: ...

class TenantFigures(_message.Message):
    __slots__ = ("tenant", "requests", "refused", "tokens", "running", "waiting", "cap", "others")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    requests: int
    refused: int
    tokens: int
    running: int
    waiting: int
    cap: str
    others: int
    def __init__(self, tenant: _Optional[str] = ..., requests: _Optional[int] = ..., refused: _Optional[int] = ..., tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., cap: _Optional[str] = ..., others: _Optional[int] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("rows", "held", "rises", "silent", "figures", "tenants", "observed_s")
    class SilentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RISES_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_S_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[str]
    held: int
    rises: _containers.RepeatedScalarFieldContainer[str]
    silent: _containers.ScalarMap[str, str]
    figures: _containers.RepeatedCompositeFieldContainer[EndpointFigures]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantFigures]
    observed_s: float
    def __init__(self, rows: _Optional[_Iterable[str]] = ..., held: _Optional[int] = ..., rises: _Optional[_Iterable[str]] = ..., silent: _Optional[_Mapping[str, str]] = ..., figures: _Optional[_Iterable[_Union[EndpointFigures, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantFigures, _Mapping]]] = ..., observed_s: _Optional[float] = ...) -> None: ...
