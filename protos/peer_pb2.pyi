from protos import calls_pb2 as _calls_pb2
from protos import router_pb2 as _router_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerQuestion(_message.Message):
    __slots__ = ("news", "rows", "stop")
    NEWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    news: NewsQuestion
    rows: RowsQuestion
    stop: StopQuestion
    def __init__(self, news: _Optional[_Union[NewsQuestion, _Mapping]] = ..., rows: _Optional[_Union[RowsQuestion, _Mapping]] = ..., stop: _Optional[_Union[StopQuestion, _Mapping]] = ...) -> None: ...

class PeerAnswer(_message.Message):
    __slots__ = ("news", "rows", "stop", "failure")
    NEWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    news: bytes
    rows: RowsAnswer
    stop: StopAnswer
    failure: _calls_pb2.Failure
    def __init__(self, news: _Optional[bytes] = ..., rows: _Optional[_Union[RowsAnswer, _Mapping]] = ..., stop: _Optional[_Union[StopAnswer, _Mapping]] = ..., failure: _Optional[_Union[_calls_pb2.Failure, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("rows", "held", "first_tokens", "figures")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[str]
    held: int
    first_tokens: bytes
    figures: _containers.RepeatedCompositeFieldContainer[_router_pb2.EndpointFigures]
    def __init__(self, rows: _Optional[_Iterable[str]] = ..., held: _Optional[int] = ..., first_tokens: _Optional[bytes] = ..., figures: _Optional[_Iterable[_Union[_router_pb2.EndpointFigures, _Mapping]]] = ...) -> None: ...

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
