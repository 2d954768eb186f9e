"""Runs coroutines together. The first failure ends all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from engine.errors import TandemError

_T = TypeVar("_T")


async def together(runs: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all coroutines, in order. A single coroutine gets no task of its own.

    The first failure cancels the others and is raised. A TandemError is raised by itself, any other
    failure in a group. Cancelling this call cancels all of them.
    """
    if len(runs) == 1:
        return [await runs[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    # What is raised in an `except*` is raised in a group before Python 3.11.4.
    except ExceptionGroup as errors:
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, TandemError):
            raise
        raise first from None
    return [task.result() for task in tasks]
