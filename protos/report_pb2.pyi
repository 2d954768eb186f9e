from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportFrame(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: Report
    def __init__(self, report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("waiting", "running", "prompt_tokens_due", "blocks_free", "blocks_promised", "streams", "step_s", "batch_tokens_due", "batch_blocks", "batch_streams", "batch_limit", "stalled", "pass_s", "pass_token_s", "shared_tokens", "chunk_tokens")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_DUE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PROMISED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_DUE_FIELD_NUMBER: _ClassVar[int]
    BATCH_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BATCH_STREAMS_FIELD_NUMBER: _ClassVar[int]
    BATCH_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    PASS_S_FIELD_NUMBER: _ClassVar[int]
    PASS_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    prompt_tokens_due: int
    blocks_free: int
    blocks_promised: int
    streams: int
    step_s: float
    batch_tokens_due: int
    batch_blocks: int
    batch_streams: int
    batch_limit: int
    stalled: bool
    pass_s: float
    pass_token_s: float
    shared_tokens: int
    chunk_tokens: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., prompt_tokens_due: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_promised: _Optional[int] = ..., streams: _Optional[int] = ..., step_s: _Optional[float] = ..., batch_tokens_due: _Optional[int] = ..., batch_blocks: _Optional[int] = ..., batch_streams: _Optional[int] = ..., batch_limit: _Optional[int] = ..., stalled: bool = ..., pass_s: _Optional[float] = ..., pass_token_s: _Optional[float] = ..., shared_tokens: _Optional[int] = ..., chunk_tokens: _Optional[int] = ...) -> None: ...
