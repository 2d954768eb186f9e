"""The shared parts of all links of one side of a replica, and the base of the two sides."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.kv.cache import KvCache
from kv_transfer.config import TransferConfig
from kv_transfer.counters import LinkCounters
from kv_transfer.frames.borrowed_blocks import BlockLender
from kv_transfer.frames.checksum import SEAL_BYTES
from kv_transfer.frames.frame_plan import check_frame_bytes
from kv_transfer.frames.staging import StagingPool
from kv_transfer.transports.registry import AUTO, candidates, channel_class, name_problem
from kv_transfer.transports.transport import ChannelOpener


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared parts of all links of one side of a replica.

    A thread that copies blocks locks `copying`. Only a sending side uses `lender`.
    """

    cache: KvCache
    config: TransferConfig
    open_channel: ChannelOpener
    staging: StagingPool
    copying: threading.Lock
    counters: LinkCounters
    lender: BlockLender


def make_shared(
    cache: KvCache, config: TransferConfig, open_channel: ChannelOpener, *, sends: bool
) -> Shared:
    """Fresh staging and counters; only a sending side has staging that another process can read.

    Raises ConfigError if a frame cannot hold a block, or if no transport has the configured name,
    or if this process cannot use the transport.
    """
    check_frame_bytes(cache.layout, config.frame_bytes)
    if (problem := name_problem(config.transport)) is not None:
        raise ConfigError(f"kv.{problem}")
    if config.transport != AUTO and (why := channel_class(config.transport).unavailable()):
        raise ConfigError(f"kv.transport: {why}")
    pinned = cache.device.type == "cuda"
    lends = any(channel.lends_memory for channel in candidates(config.transport).values())
    # Twice the links at their bound: as many again may have threads inside a broken channel.
    limit = 2 * config.max_links * config.staging_buffers
    size = config.frame_bytes + SEAL_BYTES
    staging = StagingPool(size, limit, pinned=pinned, shared=sends and lends and not pinned)
    lock, counters = threading.Lock(), LinkCounters()
    return Shared(cache, config, open_channel, staging, lock, counters, BlockLender(cache))


def device_bytes_of_link(config: TransferConfig) -> int:
    """The most memory of a GPU that a link takes on either side, with the configured transport."""
    staging = config.staging_buffers * (config.frame_bytes + SEAL_BYTES)
    taken = [channel.device_bytes for channel in candidates(config.transport).values()]
    return max((staging + one for one in taken if one is not None), default=0)


class KvEndpoint:
    """One side of a replica: the common part of the sender and the receiver of KV."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.counters = shared.counters
        self.staging = shared.staging

    @property
    def links_open(self) -> int:
        """The number of links that are up now."""
        return self.counters.links_open

    @property
    def bytes_moved(self) -> int:
        """The bytes of all committed transfers."""
        return self.counters.bytes_moved

    @property
    def transfers_failed(self) -> int:
        """The number of transfers that ended without a commit."""
        return self.counters.transfers_failed
