"""The patterns of waiting in links; no task is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from kv_transfer.errors import LinkBroken

T = TypeVar("T")


async def until(future: asyncio.Future[T], timeout_s: float, what: str) -> T:
    """The future's result; LinkBroken after `timeout_s`. Never cancels the future."""
    if not future.done():
        done, _ = await asyncio.wait({future}, timeout=timeout_s)
        if not done:
            raise LinkBroken(f"{what} took longer than {timeout_s:g} s")
    return future.result()


async def settle(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all futures are done; a cancel meanwhile is raised after that.

    Only for work that ends soon by itself, for example a copy in memory.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := {future for future in futures if not future.done()}:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def unless_failed(wanted: Coroutine[Any, Any, T], failure: asyncio.Future[Any]) -> T:
    """The result of `wanted`; if `failure` fails first, cancels `wanted` and raises that error."""
    task = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait({task, failure}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            failure.result()
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def quietly(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """Mark the future, so that asyncio does not report an exception that no task awaits."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Fail the future with that error, unless it is done."""
    if not future.done():
        future.set_exception(error)


def succeed(future: asyncio.Future[T], value: T) -> None:
    """Give the future that result, unless it is done."""
    if not future.done():
        future.set_result(value)


def first_cause(error: BaseException) -> BaseException:
    """The first exception that is not a group, inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
