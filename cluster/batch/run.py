"""A batch against a running server: a few requests at a time, each until it has a result.

line ──▶ sent ──▶ answered ──▶ a line of the output
           ▲          │ overloaded, or a passing failure
           └── wait ──┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.api.event_streams import end
from cluster.batch.concurrency import BatchConcurrency
from cluster.batch.http_client import BatchResponse
from cluster.batch.lines import BadLine, BatchLine, error_line, result_line
from cluster.display_text import long_time
from engine.errors import NotFound, TandemError, Unauthenticated, Unavailable

_OK, _UNAUTHENTICATED, _TOO_MANY = 200, 401, 429
# Statuses that tell of the server, not of the request.
_PASSING = (500, 502, 503, 504)
_MOST_FAILURES = 5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_SHOW_S = 1.0


class Poster(Protocol):
    """Sends requests; `cluster.batch.http_client.BatchServer` is one."""

    async def post(self, path: str, body: Mapping[str, Any]) -> BatchResponse:
        """The answer, whatever its status; raises Unavailable where none came."""
        ...


@dataclass(slots=True)
class BatchProgress:
    """The progress of a batch. `before` lines were done by earlier runs."""

    before: int = 0
    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> int:
        """The lines of this run that have a result."""
        return self.succeeded + self.failed

    def __str__(self) -> str:
        took_s = time.monotonic() - self.began_s
        return (
            f"{self.succeeded} done, {self.failed} failed, {self.before} done before; "
            f"{self.prompt_tokens} + {self.completion_tokens} tokens in {long_time(took_s)}"
        )

    def count(self, answer: BatchResponse) -> None:
        """Count an answer that was written."""
        succeeded = answer.reply.status == _OK
        self.succeeded += succeeded
        self.failed += not succeeded
        body = answer.reply.body
        usage = body.get("usage") if succeeded and isinstance(body, dict) else None
        if isinstance(usage, dict):
            self.prompt_tokens += int(usage.get("prompt_tokens") or 0)
            self.completion_tokens += int(usage.get("completion_tokens") or 0)


class BatchRun:
    """Sends the lines of a batch and writes a result for each.

    `endpoint` is for lines that name none. `before` lines were done by earlier runs.
    """

    def __init__(
        self,
        server: Poster,
        write: Callable[[bytes], None],
        concurrency: BatchConcurrency,
        endpoint: str | None,
        *,
        before: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.progress = BatchProgress(before)
        self._server = server
        self._write = write
        self._concurrency = concurrency
        self._endpoint = endpoint
        self._sleep = sleep

    async def run(self, lines: Iterable[BatchLine | BadLine], show: Callable[[str], None]) -> None:
        """Send all lines; raises Unavailable or Unauthenticated where more lines would fail, too.

        Another run does the lines that have no result then.
        """
        showing = asyncio.create_task(self._show(show))
        running: set[asyncio.Task[None]] = set()
        try:
            for line in lines:
                if isinstance(line, BadLine):
                    self._fail(line.custom_id, "invalid_line", line.message)
                    continue
                running.add(asyncio.create_task(self._do(line)))
                while len(running) >= self._concurrency.limit:
                    running = await _some(running)
            while running:
                running = await _some(running)
            show(self._said)
        finally:
            await end((showing, *running))

    async def _do(self, work: BatchLine) -> None:
        """Send a line's request until it has a result, and write the result."""
        body = dict(work.body)
        if self._endpoint is not None:
            body.setdefault("endpoint", self._endpoint)
        failures = 0
        while True:
            try:
                answer = await self._server.post(work.url, body)
            except Unavailable:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
                await self._sleep(_wait_s(failures))
                continue
            status = answer.reply.status
            if status == _UNAUTHENTICATED:
                raise Unauthenticated(_message(answer))
            if status == _TOO_MANY:
                self.progress.refused += 1
                self._concurrency.refused(time.monotonic())
                told_s = answer.retry_after_s
                await self._sleep(_FIRST_WAIT_S if told_s is None else min(told_s, _LONGEST_WAIT_S))
            elif status in _PASSING and failures + 1 < _MOST_FAILURES:
                failures += 1
                await self._sleep(max(_wait_s(failures), answer.retry_after_s or 0.0))
            else:
                self._concurrency.answered()
                self._write(result_line(work.custom_id, answer.reply))
                self.progress.count(answer)
                return

    def _fail(self, custom_id: str | None, code: str, message: str) -> None:
        self._write(error_line(custom_id, code, message))
        self.progress.failed += 1

    async def _show(self, show: Callable[[str], None]) -> None:
        while True:
            show(self._said)
            await asyncio.sleep(_SHOW_S)

    @property
    def _said(self) -> str:
        """What matters most comes first, since a terminal cuts the end off."""
        progress = self.progress
        refused = f"{progress.refused:,} sent again, " if progress.refused else ""
        return (
            f"{progress.failed:,} failed, {self._concurrency.limit} at a time, {refused}"
            f"{progress.prompt_tokens:,} + {progress.completion_tokens:,} tokens"
        )


def endpoint_for(models: Any, name: str | None) -> str:
    """The endpoint for a batch: `name`, or else the first of the lane batch; raises NotFound.

    `models` is the answer of `/v1/models`.
    """
    cards = models.get("data") if isinstance(models, dict) else None
    card = cards[0] if isinstance(cards, list) and cards else {}
    lanes = card.get("lanes") or {}
    known = ", ".join(card.get("endpoints") or ()) or "none"
    if name is not None:
        if name not in (card.get("endpoints") or ()):
            raise NotFound(f"the server has no endpoint {name!r}; its endpoints: {known}")
        return name
    for endpoint, lane in lanes.items():
        if lane == "batch":
            return str(endpoint)
    raise NotFound(
        f"the server has no endpoint of the lane batch (its endpoints: {known}); configure one, "
        "or name another by --endpoint"
    )


async def _some(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until some tasks end; returns the others, or raises the failure of one."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    failure: TandemError | None = None
    for task in ended:
        error = task.exception()
        if isinstance(error, TandemError):
            failure = failure or error
        elif error is not None:
            raise error
    if failure is not None:
        await end([*running])
        raise failure
    return running


def _wait_s(failures: int) -> float:
    return _FIRST_WAIT_S * float(2 ** (failures - 1))


def _message(answer: BatchResponse) -> str:
    body = answer.reply.body
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else "the API key is not known"
