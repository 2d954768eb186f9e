"""The KV that `bench.transfer.main` moves: of the 135 M shape, in frames as replicas use."""

from __future__ import annotations

import torch

from bench.core.model_135m import ModelShape
from bench.core.tandem_config import BLOCK_SIZE
from bench.transfer.tcp_store import open_store_client
from engine.kv.cache import KvCache, KvFormat
from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.config import TransferConfig
from kv_transfer.transports.transport import ChannelSpec
from protos.wire.secret import ClusterSecret

HOST = "127.0.0.1"
# Both processes are of this benchmark, and move no KV of any client.
SECRET = ClusterSecret(b"the secret of the benchmark")
_SHAPE = ModelShape()
LAYOUT = KvLayout(
    layers=(LayerShape(_SHAPE.kv_heads, _SHAPE.head_size),) * _SHAPE.layers,
    block_size=BLOCK_SIZE,
    dtype="bfloat16",
    model_identity="bench",
)
FRAME_BYTES = TransferConfig().frame_bytes
# Shared memory, where the receiver copies out of the sender's blocks.
BORROWED = "borrowed blocks"
# Whose caches have the order of the C++ operations, so that blocks go as they are.
_IN_PLACE = (BORROWED, "nixl")


def transfer_config(transport: str) -> TransferConfig:
    """A replica's configuration, with a longer silence because the machine may be busy."""
    name = "shared_memory" if transport == BORROWED else transport
    return TransferConfig(transport=name, silence_s=10.0)


def cache_for(blocks: int, transport: str) -> KvCache:
    """A cache with all pages touched, in the block order of this transport."""
    kv_format: KvFormat = "pairs" if transport in _IN_PLACE else "plain"
    cache = KvCache(LAYOUT, blocks, torch.device("cpu"), kv_format)
    for layer in cache.layers:
        layer.fill_(1.0)
    return cache


def channel_spec(transport: str, port: int, prefix: str, rank: int) -> ChannelSpec:
    """One end of a channel on this host."""
    store = open_store_client(HOST, port, prefix, 20.0)
    return ChannelSpec(transport, prefix, rank, HOST, torch.device("cpu"), 20.0, store)
