from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ("waiting", "running", "prompt_tokens", "blocks_free", "blocks_promised", "batch", "step_s")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PROMISED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    prompt_tokens: int
    blocks_free: int
    blocks_promised: int
    batch: int
    step_s: float
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_promised: _Optional[int] = ..., batch: _Optional[int] = ..., step_s: _Optional[float] = ...) -> None: ...
