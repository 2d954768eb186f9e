from protos import prefill_pb2 as _prefill_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeRequest(_message.Message):
    __slots__ = ("transfer", "prompt", "choice", "prefill_replica", "prefill_address", "request_id", "traceparent", "tenant", "local_prefill", "flush_s", "flush_tokens", "lane", "ttft_budget_s", "progress", "urgency", "batch_window_s", "scoring", "output_ids")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PREFILL_FIELD_NUMBER: _ClassVar[int]
    FLUSH_S_FIELD_NUMBER: _ClassVar[int]
    FLUSH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    TTFT_BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    URGENCY_FIELD_NUMBER: _ClassVar[int]
    BATCH_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    prompt: int
    choice: int
    prefill_replica: str
    prefill_address: str
    request_id: str
    traceparent: str
    tenant: str
    local_prefill: bool
    flush_s: float
    flush_tokens: int
    lane: str
    ttft_budget_s: float
    progress: bool
    urgency: _prefill_pb2.Urgency
    batch_window_s: float
    scoring: _prefill_pb2.Scoring
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transfer: _Optional[str] = ..., prompt: _Optional[int] = ..., choice: _Optional[int] = ..., prefill_replica: _Optional[str] = ..., prefill_address: _Optional[str] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., tenant: _Optional[str] = ..., local_prefill: bool = ..., flush_s: _Optional[float] = ..., flush_tokens: _Optional[int] = ..., lane: _Optional[str] = ..., ttft_budget_s: _Optional[float] = ..., progress: bool = ..., urgency: _Optional[_Union[_prefill_pb2.Urgency, str]] = ..., batch_window_s: _Optional[float] = ..., scoring: _Optional[_Union[_prefill_pb2.Scoring, _Mapping]] = ..., output_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("transfer_s", "admission_s", "bytes", "offered_s", "held_s", "waited_for")
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFERED_S_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    transfer_s: float
    admission_s: float
    bytes: int
    offered_s: float
    held_s: float
    waited_for: str
    def __init__(self, transfer_s: _Optional[float] = ..., admission_s: _Optional[float] = ..., bytes: _Optional[int] = ..., offered_s: _Optional[float] = ..., held_s: _Optional[float] = ..., waited_for: _Optional[str] = ...) -> None: ...

class Retired(_message.Message):
    __slots__ = ("preemptions", "decode_s", "steps", "stepping_s", "mean_batch", "share_s", "straggler_steps", "recomputed_tokens", "held_s")
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPPING_S_FIELD_NUMBER: _ClassVar[int]
    MEAN_BATCH_FIELD_NUMBER: _ClassVar[int]
    SHARE_S_FIELD_NUMBER: _ClassVar[int]
    STRAGGLER_STEPS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    preemptions: int
    decode_s: float
    steps: int
    stepping_s: float
    mean_batch: float
    share_s: float
    straggler_steps: int
    recomputed_tokens: int
    held_s: float
    def __init__(self, preemptions: _Optional[int] = ..., decode_s: _Optional[float] = ..., steps: _Optional[int] = ..., stepping_s: _Optional[float] = ..., mean_batch: _Optional[float] = ..., share_s: _Optional[float] = ..., straggler_steps: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., held_s: _Optional[float] = ...) -> None: ...
