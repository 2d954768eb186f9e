"""Which transport a pair uses, and why; and opening a channel of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import torch

from kv_transfer.errors import LinkRefused
from kv_transfer.transports.cuda_ipc import CudaIpcChannel
from kv_transfer.transports.gloo import GlooChannel
from kv_transfer.transports.loopback import LoopbackChannel
from kv_transfer.transports.nccl import NcclChannel
from kv_transfer.transports.shared_memory import SharedMemoryChannel
from kv_transfer.transports.transport import Channel, ChannelSpec

PROCESS = uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class TransportSide:
    """What one replica brings to the choice: what it asks for, where its KV is, its process.

    `device` is what `device_name` says of the KV's device.
    """

    transport: str
    device: str
    process: str


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport and the reason, for the log."""

    transport: str
    why: str


def device_name(device: torch.device) -> str:
    """A device's kind; for a GPU also which one, by UUID, as ordinals differ by process."""
    if device.type != "cuda":
        return device.type
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"


def choose(
    sender: TransportSide,
    receiver: TransportSide,
    parted: str | None = "their hosts were not compared",
) -> TransportChoice:
    """The pair's transport; LinkRefused names what does not fit.

    `parted` says why the two cannot share memory; None when it was shown that they can.
    """
    asked = {side.transport for side in (sender, receiver)} - {"auto"}
    if len(asked) > 1:
        raise LinkRefused(f"transport: {sender.transport} here, {receiver.transport} there")
    same_process = sender.process == receiver.process
    both_cuda = sender.device.startswith("cuda") and receiver.device.startswith("cuda")
    one_gpu = both_cuda and sender.device == receiver.device
    on_cpu = sender.device == receiver.device == "cpu"
    where = f"KV is on {sender.device} here, on {receiver.device} there"
    not_shared = parted if on_cpu else where
    if asked:
        transport = asked.pop()
        if transport == "loopback" and not same_process:
            raise LinkRefused("transport: loopback needs both ends in one process")
        if transport == "shared_memory" and not_shared is not None:
            raise LinkRefused(f"transport: shared_memory, but {not_shared}")
        if transport == "nccl" and not both_cuda:
            raise LinkRefused(
                f"transport: nccl needs CUDA on both; {sender.device} here, {receiver.device} there"
            )
        if transport == "cuda_ipc" and not one_gpu:
            raise LinkRefused(f"transport: cuda_ipc needs one GPU for both, but {where}")
        if transport == "cuda_ipc" and parted is not None:
            raise LinkRefused(f"transport: cuda_ipc, but {parted}")
        if transport == "nccl" and one_gpu:
            raise LinkRefused("transport: nccl refuses two ranks on one GPU")
        return TransportChoice(transport, "configured")
    if same_process:
        return TransportChoice("loopback", "both ends are in one process")
    if one_gpu and parted is None:
        return TransportChoice("cuda_ipc", "both ends are on one GPU")
    if one_gpu:
        return TransportChoice(
            "gloo", f"both ends are on one GPU, which NCCL refuses, and {parted}"
        )
    if both_cuda:
        return TransportChoice("nccl", "CUDA on both ends")
    if not_shared is None:
        return TransportChoice(
            "shared_memory", "one host: the sender has read the receiver's witness file"
        )
    return TransportChoice(
        "gloo", not_shared if not on_cpu else f"KV is on cpu on both ends, and {parted}"
    )


def open_channel(spec: ChannelSpec) -> Channel:
    """Open this end; blocks until the other end has joined, else ChannelBroken."""
    if spec.transport == "gloo":
        return GlooChannel(spec)
    if spec.transport == "nccl":
        return NcclChannel(spec)
    if spec.transport == "loopback":
        return LoopbackChannel(spec)
    if spec.transport == "shared_memory":
        return SharedMemoryChannel(spec)
    if spec.transport == "cuda_ipc":
        return CudaIpcChannel(spec)
    raise LinkRefused(f"transport: {spec.transport!r} is unknown here")
