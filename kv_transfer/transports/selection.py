"""The choice of a transport for a pair of replicas, and opening a channel of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import torch

from kv_transfer.errors import LinkRefused
from kv_transfer.transports.registry import AUTO, candidates, channel_class
from kv_transfer.transports.transport import Channel, ChannelSpec, Needs

PROCESS = uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class TransportSide:
    """One replica's part in the choice of a transport.

    `transport` is the replica's `kv.transport`. `device` is `device_name` of its KV's device.
    `process` identifies its process.
    """

    transport: str
    device: str
    process: str


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport, and the reason for the log."""

    transport: str
    why: str


@dataclass(frozen=True, slots=True)
class _Ends:
    """A sender, a receiver, and why they cannot share memory (None if they can)."""

    sender: TransportSide
    receiver: TransportSide
    separation: str | None

    def missing(self, needs: Needs) -> str | None:
        """The need that this pair does not meet; None if it meets all of them."""
        where = f"KV is on {self.sender.device} here, on {self.receiver.device} there"
        devices = {self.sender.device, self.receiver.device}
        all_cuda = all(device.startswith("cuda") for device in devices)
        if needs.one_process and self.sender.process != self.receiver.process:
            return "needs both ends in one process"
        if needs.device == "cpu" and devices != {"cpu"}:
            return f"needs KV on the CPU of both ends, but {where}"
        if needs.device == "one_gpu" and not (all_cuda and len(devices) == 1):
            return f"needs one GPU for both ends, but {where}"
        if needs.device == "two_gpus" and not all_cuda:
            return f"needs CUDA on both ends, but {where}"
        if needs.device == "two_gpus" and len(devices) == 1:
            return "refuses two ranks on one GPU"
        if needs.one_host and self.separation is not None:
            return f"needs one host, but {self.separation}"
        return None


_MET_DEVICE = {
    "cpu": "KV is on the CPU of both ends",
    "one_gpu": "both ends are on one GPU",
    "two_gpus": "CUDA on both ends",
}


def _met(needs: Needs) -> list[str]:
    """The properties of a pair that meets these needs."""
    facts = ["both ends are in one process"] if needs.one_process else []
    facts += [_MET_DEVICE[needs.device]] if needs.device in _MET_DEVICE else []
    if needs.one_host:
        facts.append("one host: the sender has read the receiver's witness file")
    return facts


def device_name(device: torch.device) -> str:
    """A device's kind, and a GPU's UUID, because ordinals differ between processes."""
    if device.type != "cuda":
        return device.type
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"


def choose(
    sender: TransportSide,
    receiver: TransportSide,
    separation: str | None = "their hosts were not compared",
) -> TransportChoice:
    """The first registered transport whose needs the pair meets, or the configured one.

    `separation` says why the two cannot share memory; None when a check has shown that they can.
    Raises LinkRefused with the need that the pair does not meet.
    """
    configured = {side.transport for side in (sender, receiver)} - {AUTO}
    if len(configured) > 1:
        raise LinkRefused(f"transport: {sender.transport} here, {receiver.transport} there")
    pair = _Ends(sender, receiver, separation)
    name = configured.pop() if configured else AUTO
    refusals: list[str] = []
    for transport, channel in candidates(name).items():
        missing = pair.missing(channel.needs) or channel.unavailable()
        if missing is None:
            facts = ["configured"] if name != AUTO else _met(channel.needs) or refusals
            return TransportChoice(transport, "; ".join(facts))
        refusals.append(f"{transport} {missing}")
    raise LinkRefused(f"transport: {'; '.join(refusals)}")


def unverified(configured: str) -> list[str]:
    """The transports that `kv.transport` may choose and that have not run as they should."""
    return [name for name, channel in candidates(configured).items() if not channel.verified]


def open_channel(spec: ChannelSpec) -> Channel:
    """Open this end; blocks until the other end has joined. Raises ChannelBroken, LinkRefused."""
    return channel_class(spec.transport)(spec)
