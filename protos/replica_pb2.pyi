from protos import calls_pb2 as _calls_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlRequest(_message.Message):
    __slots__ = ("take_role", "purge", "end")
    TAKE_ROLE_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    take_role: TakeRoleRequest
    purge: PurgeTenant
    end: EndProcess
    def __init__(self, take_role: _Optional[_Union[TakeRoleRequest, _Mapping]] = ..., purge: _Optional[_Union[PurgeTenant, _Mapping]] = ..., end: _Optional[_Union[EndProcess, _Mapping]] = ...) -> None: ...

class ControlAnswer(_message.Message):
    __slots__ = ("took_role", "purged", "ending", "failure")
    TOOK_ROLE_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    took_role: TakeRoleResponse
    purged: PurgedBlocks
    ending: Ending
    failure: _calls_pb2.Failure
    def __init__(self, took_role: _Optional[_Union[TakeRoleResponse, _Mapping]] = ..., purged: _Optional[_Union[PurgedBlocks, _Mapping]] = ..., ending: _Optional[_Union[Ending, _Mapping]] = ..., failure: _Optional[_Union[_calls_pb2.Failure, _Mapping]] = ...) -> None: ...

class TakeRoleRequest(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    def __init__(self, role: _Optional[str] = ...) -> None: ...

class TakeRoleResponse(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: str
    def __init__(self, before: _Optional[str] = ...) -> None: ...

class PurgeTenant(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class PurgedBlocks(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    def __init__(self, blocks: _Optional[int] = ...) -> None: ...

class EndProcess(_message.Message):
    __slots__ = ("replica", "at_once")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    at_once: bool
    def __init__(self, replica: _Optional[str] = ..., at_once: bool = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
