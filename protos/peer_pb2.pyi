from protos import calls_pb2 as _calls_pb2
from protos import router_pb2 as _router_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerQuestion(_message.Message):
    __slots__ = ("news", "rows", "stop", "blockers")
    NEWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    news: NewsQuestion
    rows: RowsQuestion
    stop: StopQuestion
    blockers: BlockersQuestion
    def __init__(self, news: _Optional[_Union[NewsQuestion, _Mapping]] = ..., rows: _Optional[_Union[RowsQuestion, _Mapping]] = ..., stop: _Optional[_Union[StopQuestion, _Mapping]] = ..., blockers: _Optional[_Union[BlockersQuestion, _Mapping]] = ...) -> None: ...

class PeerAnswer(_message.Message):
    __slots__ = ("news", "rows", "stop", "blockers", "failure", "asked_at", "answered_at")
    NEWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_FIELD_NUMBER: _ClassVar[int]
    news: bytes
    rows: RowsAnswer
    stop: StopAnswer
    blockers: BlockersAnswer
    failure: _calls_pb2.Failure
    asked_at: float
    answered_at: float
    def __init__(self, news: _Optional[bytes] = ..., rows: _Optional[_Union[RowsAnswer, _Mapping]] = ..., stop: _Optional[_Union[StopAnswer, _Mapping]] = ..., blockers: _Optional[_Union[BlockersAnswer, _Mapping]] = ..., failure: _Optional[_Union[_calls_pb2.Failure, _Mapping]] = ..., asked_at: _Optional[float] = ..., answered_at: _Optional[float] = ...) -> None: ...

class NewsQuestion(_message.Message):
    __slots__ = ("counts_after", "rows_after")
    COUNTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    ROWS_AFTER_FIELD_NUMBER: _ClassVar[int]
    counts_after: int
    rows_after: int
    def __init__(self, counts_after: _Optional[int] = ..., rows_after: _Optional[int] = ...) -> None: ...

class RowsQuestion(_message.Message):
    __slots__ = ("wanted", "for_console")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    FOR_CONSOLE_FIELD_NUMBER: _ClassVar[int]
    wanted: _router_pb2.ListRequestsRequest
    for_console: bool
    def __init__(self, wanted: _Optional[_Union[_router_pb2.ListRequestsRequest, _Mapping]] = ..., for_console: bool = ...) -> None: ...

class RowsAnswer(_message.Message):
    __slots__ = ("rows", "held", "first_tokens", "figures", "tenants", "shares", "observed_s")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_S_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[str]
    held: int
    first_tokens: bytes
    figures: _containers.RepeatedCompositeFieldContainer[_router_pb2.EndpointFigures]
    tenants: _containers.RepeatedCompositeFieldContainer[_router_pb2.TenantFigures]
    shares: bytes
    observed_s: float
    def __init__(self, rows: _Optional[_Iterable[str]] = ..., held: _Optional[int] = ..., first_tokens: _Optional[bytes] = ..., figures: _Optional[_Iterable[_Union[_router_pb2.EndpointFigures, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[_router_pb2.TenantFigures, _Mapping]]] = ..., shares: _Optional[bytes] = ..., observed_s: _Optional[float] = ...) -> None: ...

class StopQuestion(_message.Message):
    __slots__ = ("request_id", "tenant", "operator")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    operator: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., operator: _Optional[str] = ...) -> None: ...

class StopAnswer(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class BlockersQuestion(_message.Message):
    __slots__ = ("waits",)
    WAITS_FIELD_NUMBER: _ClassVar[int]
    waits: _containers.RepeatedCompositeFieldContainer[ReplicaWait]
    def __init__(self, waits: _Optional[_Iterable[_Union[ReplicaWait, _Mapping]]] = ...) -> None: ...

class ReplicaWait(_message.Message):
    __slots__ = ("stage", "choice", "replica", "begin_at", "end_at", "least_s")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    LEAST_S_FIELD_NUMBER: _ClassVar[int]
    stage: str
    choice: int
    replica: str
    begin_at: float
    end_at: float
    least_s: float
    def __init__(self, stage: _Optional[str] = ..., choice: _Optional[int] = ..., replica: _Optional[str] = ..., begin_at: _Optional[float] = ..., end_at: _Optional[float] = ..., least_s: _Optional[float] = ...) -> None: ...

class BlockersAnswer(_message.Message):
    __slots__ = ("blockers",)
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    blockers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, blockers: _Optional[_Iterable[str]] = ...) -> None: ...
