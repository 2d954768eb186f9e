from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiverMessage(_message.Message):
    __slots__ = ("hello", "joined", "pull", "committed", "cancel", "heartbeat", "credit", "end", "value", "more")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    joined: Joined
    pull: Pull
    committed: Committed
    cancel: CancelTransfer
    heartbeat: Heartbeat
    credit: Credit
    end: LinkEnd
    value: Value
    more: _containers.RepeatedCompositeFieldContainer[ReceiverMessage]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., cancel: _Optional[_Union[CancelTransfer, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., end: _Optional[_Union[LinkEnd, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ReceiverMessage, _Mapping]]] = ...) -> None: ...

class SenderMessage(_message.Message):
    __slots__ = ("welcome", "refuse", "joined", "offer", "done", "withdraw", "heartbeat", "extent", "frames", "end", "value", "more")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refuse: RefuseLink
    joined: Joined
    offer: Offer
    done: Done
    withdraw: Withdraw
    heartbeat: Heartbeat
    extent: Extent
    frames: Frames
    end: LinkEnd
    value: Value
    more: _containers.RepeatedCompositeFieldContainer[SenderMessage]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refuse: _Optional[_Union[RefuseLink, _Mapping]] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., extent: _Optional[_Union[Extent, _Mapping]] = ..., frames: _Optional[_Union[Frames, _Mapping]] = ..., end: _Optional[_Union[LinkEnd, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ..., more: _Optional[_Iterable[_Union[SenderMessage, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("receiver", "generation", "layout", "transport", "device", "process", "frame_bytes", "witness", "protocol")
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    receiver: str
    generation: int
    layout: Layout
    transport: str
    device: str
    process: str
    frame_bytes: int
    witness: Witness
    protocol: int
    def __init__(self, receiver: _Optional[str] = ..., generation: _Optional[int] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., transport: _Optional[str] = ..., device: _Optional[str] = ..., process: _Optional[str] = ..., frame_bytes: _Optional[int] = ..., witness: _Optional[_Union[Witness, _Mapping]] = ..., protocol: _Optional[int] = ...) -> None: ...

class Witness(_message.Message):
    __slots__ = ("boot", "pid", "descriptor", "nonce")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    boot: str
    pid: int
    descriptor: int
    nonce: bytes
    def __init__(self, boot: _Optional[str] = ..., pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("layers", "block_tokens", "dtype", "model_identity")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MODEL_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedCompositeFieldContainer[LayerShape]
    block_tokens: int
    dtype: str
    model_identity: str
    def __init__(self, layers: _Optional[_Iterable[_Union[LayerShape, _Mapping]]] = ..., block_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., model_identity: _Optional[str] = ...) -> None: ...

class LayerShape(_message.Message):
    __slots__ = ("kv_heads", "head_size")
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    kv_heads: int
    head_size: int
    def __init__(self, kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("sender", "channel", "transport", "frame_bytes", "protocol", "cache")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    sender: str
    channel: str
    transport: str
    frame_bytes: int
    protocol: int
    cache: SharedCache
    def __init__(self, sender: _Optional[str] = ..., channel: _Optional[str] = ..., transport: _Optional[str] = ..., frame_bytes: _Optional[int] = ..., protocol: _Optional[int] = ..., cache: _Optional[_Union[SharedCache, _Mapping]] = ...) -> None: ...

class SharedCache(_message.Message):
    __slots__ = ("pid", "descriptor", "identity", "generation", "bytes", "blocks")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    identity: int
    generation: int
    bytes: int
    blocks: int
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., identity: _Optional[int] = ..., generation: _Optional[int] = ..., bytes: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class RefuseLink(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LinkEnd(_message.Message):
    __slots__ = ("reason", "closed")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    closed: bool
    def __init__(self, reason: _Optional[str] = ..., closed: bool = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Offer(_message.Message):
    __slots__ = ("transfer", "tokens", "blocks", "first_token", "early", "borrowed")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    tokens: int
    blocks: int
    first_token: int
    early: bool
    borrowed: BorrowedBlocks
    def __init__(self, transfer: _Optional[str] = ..., tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., first_token: _Optional[int] = ..., early: bool = ..., borrowed: _Optional[_Union[BorrowedBlocks, _Mapping]] = ...) -> None: ...

class BorrowedBlocks(_message.Message):
    __slots__ = ("word", "number", "blocks", "plain")
    WORD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    word: int
    number: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    plain: bool
    def __init__(self, word: _Optional[int] = ..., number: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., plain: bool = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("transfer", "generation", "blocks", "in_place")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    generation: int
    blocks: int
    in_place: bool
    def __init__(self, transfer: _Optional[str] = ..., generation: _Optional[int] = ..., blocks: _Optional[int] = ..., in_place: bool = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("transfer", "layer_start", "layer_stop", "block_start", "block_stop", "frame_bytes")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    LAYER_START_FIELD_NUMBER: _ClassVar[int]
    LAYER_STOP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STOP_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int
    frame_bytes: int
    def __init__(self, transfer: _Optional[str] = ..., layer_start: _Optional[int] = ..., layer_stop: _Optional[int] = ..., block_start: _Optional[int] = ..., block_stop: _Optional[int] = ..., frame_bytes: _Optional[int] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("sequence", "transfer", "generation", "layer_start", "layer_stop", "block_start", "block_stop", "head_start", "head_stop", "bytes")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYER_START_FIELD_NUMBER: _ClassVar[int]
    LAYER_STOP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STOP_FIELD_NUMBER: _ClassVar[int]
    HEAD_START_FIELD_NUMBER: _ClassVar[int]
    HEAD_STOP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    transfer: str
    generation: int
    layer_start: int
    layer_stop: int
    block_start: int
    block_stop: int
    head_start: int
    head_stop: int
    bytes: int
    def __init__(self, sequence: _Optional[int] = ..., transfer: _Optional[str] = ..., generation: _Optional[int] = ..., layer_start: _Optional[int] = ..., layer_stop: _Optional[int] = ..., block_start: _Optional[int] = ..., block_stop: _Optional[int] = ..., head_start: _Optional[int] = ..., head_stop: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: int
    def __init__(self, frames: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("transfer", "frames", "first_token")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    frames: int
    first_token: int
    def __init__(self, transfer: _Optional[str] = ..., frames: _Optional[int] = ..., first_token: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("transfer",)
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    def __init__(self, transfer: _Optional[str] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("transfer", "reason")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    reason: str
    def __init__(self, transfer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelTransfer(_message.Message):
    __slots__ = ("transfer", "reason")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    transfer: str
    reason: str
    def __init__(self, transfer: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
