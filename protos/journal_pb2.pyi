from protos import calls_pb2 as _calls_pb2
from tandem_client.protos import inference_pb2 as _inference_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournaledRequest(_message.Message):
    __slots__ = ("request", "started", "note", "arrived_at", "model_identity", "form", "admitted_s", "x_request_id", "traceparent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AT_FIELD_NUMBER: _ClassVar[int]
    MODEL_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_S_FIELD_NUMBER: _ClassVar[int]
    X_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request: _inference_pb2.GenerateRequest
    started: _inference_pb2.Started
    note: str
    arrived_at: float
    model_identity: str
    form: str
    admitted_s: float
    x_request_id: str
    traceparent: str
    def __init__(self, request: _Optional[_Union[_inference_pb2.GenerateRequest, _Mapping]] = ..., started: _Optional[_Union[_inference_pb2.Started, _Mapping]] = ..., note: _Optional[str] = ..., arrived_at: _Optional[float] = ..., model_identity: _Optional[str] = ..., form: _Optional[str] = ..., admitted_s: _Optional[float] = ..., x_request_id: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class JournaledEvent(_message.Message):
    __slots__ = ("tokens", "summary", "failure", "first", "after_ms")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    tokens: _inference_pb2.Tokens
    summary: _inference_pb2.Summary
    failure: _calls_pb2.Failure
    first: FirstTokenTimes
    after_ms: int
    def __init__(self, tokens: _Optional[_Union[_inference_pb2.Tokens, _Mapping]] = ..., summary: _Optional[_Union[_inference_pb2.Summary, _Mapping]] = ..., failure: _Optional[_Union[_calls_pb2.Failure, _Mapping]] = ..., first: _Optional[_Union[FirstTokenTimes, _Mapping]] = ..., after_ms: _Optional[int] = ...) -> None: ...

class FirstTokenTimes(_message.Message):
    __slots__ = ("queue_s", "prefill_s", "ttft_s", "cached_tokens", "decode_replica", "prefill_replica", "prefill_share_s", "sent_s")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PREFILL_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SHARE_S_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    prefill_s: float
    ttft_s: float
    cached_tokens: int
    decode_replica: str
    prefill_replica: str
    prefill_share_s: float
    sent_s: float
    def __init__(self, queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., decode_replica: _Optional[str] = ..., prefill_replica: _Optional[str] = ..., prefill_share_s: _Optional[float] = ..., sent_s: _Optional[float] = ...) -> None: ...
