from tandem_client.protos import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Urgency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    URGENCY_UNSPECIFIED: _ClassVar[Urgency]
    URGENCY_PRESSED: _ClassVar[Urgency]
    URGENCY_URGENT: _ClassVar[Urgency]
URGENCY_UNSPECIFIED: Urgency
URGENCY_PRESSED: Urgency
URGENCY_URGENT: Urgency

class PrefillRequest(_message.Message):
    __slots__ = ("transfer", "prompt", "choice", "decode_replica", "ttft_budget_s", "request_id", "traceparent", "tenant", "lane", "progress", "urgency", "scoring")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    DECODE_REPLICA_FIELD_NUMBER: _ClassVar[int]
    TTFT_BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    URGENCY_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    prompt: int
    choice: int
    decode_replica: str
    ttft_budget_s: float
    request_id: str
    traceparent: str
    tenant: str
    lane: str
    progress: bool
    urgency: Urgency
    scoring: Scoring
    def __init__(self, transfer: _Optional[str] = ..., prompt: _Optional[int] = ..., choice: _Optional[int] = ..., decode_replica: _Optional[str] = ..., ttft_budget_s: _Optional[float] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., tenant: _Optional[str] = ..., lane: _Optional[str] = ..., progress: bool = ..., urgency: _Optional[_Union[Urgency, str]] = ..., scoring: _Optional[_Union[Scoring, _Mapping]] = ...) -> None: ...

class SharedPrompt(_message.Message):
    __slots__ = ("ids", "sampling")
    IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _inference_pb2.Sampling
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_inference_pb2.Sampling, _Mapping]] = ...) -> None: ...

class PromptProgress(_message.Message):
    __slots__ = ("computed", "queued", "position", "wait_s")
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    computed: int
    queued: bool
    position: int
    wait_s: float
    def __init__(self, computed: _Optional[int] = ..., queued: bool = ..., position: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Scoring(_message.Message):
    __slots__ = ("first", "top")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    first: int
    top: int
    def __init__(self, first: _Optional[int] = ..., top: _Optional[int] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("logprobs", "top_ids", "top_logprobs")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprobs: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("tokens", "queue_s", "prefill_s", "cached_tokens", "passes", "flush_s", "held_s", "share_s", "scores")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_S_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_S_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    tokens: _inference_pb2.Tokens
    queue_s: float
    prefill_s: float
    cached_tokens: int
    passes: float
    flush_s: float
    held_s: float
    share_s: float
    scores: Scores
    def __init__(self, tokens: _Optional[_Union[_inference_pb2.Tokens, _Mapping]] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., passes: _Optional[float] = ..., flush_s: _Optional[float] = ..., held_s: _Optional[float] = ..., share_s: _Optional[float] = ..., scores: _Optional[_Union[Scores, _Mapping]] = ...) -> None: ...

class Unfinished(_message.Message):
    __slots__ = ("share_s",)
    SHARE_S_FIELD_NUMBER: _ClassVar[int]
    share_s: float
    def __init__(self, share_s: _Optional[float] = ...) -> None: ...

class HandedOver(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...
