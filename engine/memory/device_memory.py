"""The memory of a device now, and refusals that say how much is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from engine.errors import ConfigError
from engine.free_memory import free_bytes

T = TypeVar("T")


class DeviceMemory(Protocol):
    """What measures a device; `CudaMemory`, or a stand-in of a test."""

    def used(self) -> int:
        """Bytes in use, without those that torch keeps for later."""
        ...

    def peak_of(self, call: Callable[[], object]) -> int:
        """Bytes that the call had allocated at its height."""
        ...


class CudaMemory:
    """See DeviceMemory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def used(self) -> int:
        """See DeviceMemory; includes other processes on the device."""
        release_unused(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def peak_of(self, call: Callable[[], object]) -> int:
        """See DeviceMemory."""
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        call()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - before)


def release_unused(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def in_gib(count: float) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.2f} GiB"


def free_of(device: torch.device) -> str:
    """The free memory of a device in words, with its whole memory where that is known."""
    free = in_gib(free_bytes(device))
    if device.type != "cuda":
        return f"{free} free on this host"
    return f"{free} free of {in_gib(torch.cuda.mem_get_info(device)[1])} on {device}"


def check_weights_fit(wanted: int, device: torch.device) -> None:
    """Raise ConfigError if weights of so many bytes find no room on a GPU, before any is read.

    A host's free memory is too rough a figure to refuse by.
    """
    if device.type == "cuda" and wanted > free_bytes(device):
        raise ConfigError(
            f"model.path: the weights need {in_gib(wanted)}, and there is {free_of(device)}"
        )


@contextmanager
def refusing_out_of_memory(device: torch.device, what: str) -> Iterator[None]:
    """Turn the device's out-of-memory inside into a ConfigError of one line with the numbers."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        wanted = str(error).split("Tried to allocate ", 1)[-1].split(". ", 1)[0]
        raise ConfigError(
            f"{what}: out of memory at {wanted}: there is {free_of(device)}"
        ) from error
