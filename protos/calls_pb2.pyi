from protos import decode_pb2 as _decode_pb2
from tandem_client.protos import inference_pb2 as _inference_pb2
from protos import prefill_pb2 as _prefill_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RouterMessage(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("call", "prefill", "decode", "cancel", "prompt", "forget")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    call: int
    prefill: _prefill_pb2.PrefillRequest
    decode: _decode_pb2.DecodeRequest
    cancel: CancelCall
    prompt: bytes
    forget: ForgetPrompt
    def __init__(self, call: _Optional[int] = ..., prefill: _Optional[_Union[_prefill_pb2.PrefillRequest, _Mapping]] = ..., decode: _Optional[_Union[_decode_pb2.DecodeRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelCall, _Mapping]] = ..., prompt: _Optional[bytes] = ..., forget: _Optional[_Union[ForgetPrompt, _Mapping]] = ...) -> None: ...

class CancelCall(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetPrompt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplicaMessage(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[CallEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[CallEvent, _Mapping]]] = ...) -> None: ...

class CallEvent(_message.Message):
    __slots__ = ("call", "first_token", "handed_over", "admitted", "tokens", "retired", "ended", "progress", "unfinished")
    CALL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    call: int
    first_token: _prefill_pb2.FirstToken
    handed_over: _prefill_pb2.HandedOver
    admitted: _decode_pb2.Admitted
    tokens: _inference_pb2.Tokens
    retired: _decode_pb2.Retired
    ended: Ended
    progress: _prefill_pb2.PromptProgress
    unfinished: _prefill_pb2.Unfinished
    def __init__(self, call: _Optional[int] = ..., first_token: _Optional[_Union[_prefill_pb2.FirstToken, _Mapping]] = ..., handed_over: _Optional[_Union[_prefill_pb2.HandedOver, _Mapping]] = ..., admitted: _Optional[_Union[_decode_pb2.Admitted, _Mapping]] = ..., tokens: _Optional[_Union[_inference_pb2.Tokens, _Mapping]] = ..., retired: _Optional[_Union[_decode_pb2.Retired, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., progress: _Optional[_Union[_prefill_pb2.PromptProgress, _Mapping]] = ..., unfinished: _Optional[_Union[_prefill_pb2.Unfinished, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "field", "retry_after_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    field: str
    retry_after_ms: int
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
