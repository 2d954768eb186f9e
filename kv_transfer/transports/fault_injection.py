"""A channel that fails on purpose, around a sound one, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import NoReturn, TypeVar

import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.transport import (
    Arrived,
    Channel,
    ChannelOpener,
    ChannelSpec,
    Offsets,
    ReadingChannel,
    Receipt,
    Wait,
)

T = TypeVar("T")


class Fault(Enum):
    """The kinds of faults."""

    HANG = "the call never completes, whatever its timeout, until `release`"
    FAIL = "the call fails and the channel is broken"
    SLOW = "every call from this one on takes `seconds` longer"
    CORRUPT = "one byte of the message changes on the way"
    DIE_HALF = "half of the message arrives, then the channel is broken"


# After such a fault nothing more is passed on, because the two sides would no longer match.
_DEADLY = (Fault.HANG, Fault.FAIL, Fault.DIE_HALF)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The fault of the `call`-th send or receive of a channel, counted from 0."""

    fault: Fault
    call: int = 0
    seconds: float = 0.0


class FaultyChannel(Channel):
    """Passes every call on to the channel inside, until the planned fault has broken it."""

    def __init__(self, inner: Channel, plan: FaultPlan) -> None:
        self.staging_device, self.ahead = inner.staging_device, inner.ahead
        self._inner = inner
        self._plan = plan
        self._calls = 0
        self._released = threading.Event()

    def send(self, buffer: torch.Tensor) -> Wait:
        """See `Channel.send`."""
        fault = self._next_fault()
        if fault in _DEADLY:
            return partial(self._die, fault)
        if fault is Fault.CORRUPT:
            buffer = _corrupted(buffer.clone())
        wait = self._inner.send(buffer)
        return partial(self._slowly, wait) if fault is Fault.SLOW else wait

    def receive(self, staging: torch.Tensor, size: int) -> Receipt:
        """See `Channel.receive`."""
        fault = self._next_fault()
        if fault is Fault.DIE_HALF and self._calls <= self._plan.call + 1:
            whole = torch.empty_like(staging)
            return partial(self._die_half, self._inner.receive(whole, size), staging, size)
        if fault in _DEADLY:
            return partial(self._die, fault)
        receipt = self._inner.receive(staging, size)
        if fault is Fault.CORRUPT:
            return partial(_corrupt_after, receipt)
        return partial(self._slowly, receipt) if fault is Fault.SLOW else receipt

    def release(self) -> None:
        """Let a hanging call fail."""
        self._released.set()

    def abort(self) -> None:
        """Abort the channel inside; a hanging call goes on hanging, as in Gloo."""
        self._inner.abort()

    def close(self) -> None:
        """Close the channel inside."""
        self._inner.close()

    def _next_fault(self) -> Fault | None:
        call, self._calls = self._calls, self._calls + 1
        plan = self._plan
        lasts = plan.fault is Fault.SLOW or plan.fault in _DEADLY
        hit = call >= plan.call if lasts else call == plan.call
        return plan.fault if hit else None

    def _die(self, fault: Fault, _: float) -> NoReturn:
        if fault is Fault.HANG:
            self._released.wait()
            raise ChannelBroken("faulty: released after hanging")
        self._inner.abort()
        raise ChannelBroken(f"faulty: {fault.value}")

    def _die_half(
        self, receipt: Receipt, staging: torch.Tensor, size: int, timeout_s: float
    ) -> NoReturn:
        staging[: size // 2] = receipt(timeout_s).data[: size // 2]
        self._die(Fault.DIE_HALF, timeout_s)

    def _slowly(self, wait: Callable[[float], T], timeout_s: float) -> T:
        time.sleep(min(self._plan.seconds, timeout_s))
        if self._plan.seconds >= timeout_s:
            raise ChannelBroken("faulty: too slow")
        return wait(timeout_s)


class FaultyReadingChannel(FaultyChannel, ReadingChannel):
    """The same for a channel whose receiver reads in place: each read counts as a call."""

    def __init__(self, inner: ReadingChannel, plan: FaultPlan) -> None:
        super().__init__(inner, plan)
        self.remote_bytes = inner.remote_bytes
        self._reading = inner

    def read(self, there: Offsets, here: Offsets, sizes: Offsets, timeout_s: float) -> None:
        """See `ReadingChannel.read`; nothing finds a byte that changed on the way."""
        fault = self._next_fault()
        if fault is Fault.DIE_HALF:
            half = slice(0, len(sizes) // 2)
            if sizes[half].size:
                self._reading.read(there[half], here[half], sizes[half], timeout_s)
        if fault is Fault.HANG:
            # A read has a deadline in any case, because it writes to blocks until it has ended.
            self._released.wait(timeout_s)
            raise ChannelBroken("faulty: a read took too long")
        if fault in _DEADLY:
            self._die(fault, timeout_s)
        read = partial(self._reading.read, there, here, sizes)
        (partial(self._slowly, read) if fault is Fault.SLOW else read)(timeout_s)

    def abort(self) -> None:
        """Abort the channel inside, and end a read that hangs."""
        super().abort()
        self._released.set()

    def read_word(self, number: int, timeout_s: float) -> int:
        """See `ReadingChannel.read_word`; never fails on purpose."""
        return self._reading.read_word(number, timeout_s)


class FaultyOpener:
    """Opens channels, the n-th of them with the n-th plan; later channels are sound."""

    def __init__(self, opener: ChannelOpener, plans: Sequence[FaultPlan | None]) -> None:
        self._opener = opener
        self._plans = list(plans)
        self.channels: list[FaultyChannel] = []

    def __call__(self, spec: ChannelSpec) -> Channel:
        """Open the next channel; called on the link's thread."""
        plan = self._plans.pop(0) if self._plans else None
        channel = self._opener(spec)
        if plan is None:
            return channel
        if isinstance(channel, ReadingChannel):
            faulty: FaultyChannel = FaultyReadingChannel(channel, plan)
        else:
            faulty = FaultyChannel(channel, plan)
        self.channels.append(faulty)
        return faulty

    def release(self) -> None:
        """Let all hanging calls fail."""
        for channel in self.channels:
            channel.release()


def _corrupt_after(receipt: Receipt, timeout_s: float) -> Arrived:
    arrived = receipt(timeout_s)
    return replace(arrived, data=_corrupted(arrived.data.clone()))


def _corrupted(buffer: torch.Tensor) -> torch.Tensor:
    buffer[buffer.numel() // 2] ^= 1
    return buffer
