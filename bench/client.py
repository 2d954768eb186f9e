"""A plain asyncio client for streamed completions, as light as can be: it shares the cores.

While streams run, it only notes what arrived when; all parsing comes afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from bench.prompts import count_tokens
from bench.rates import Stream

_READ = 65536


class BadAnswer(Exception):
    """The server answered with an error, or not as expected."""


@dataclass(slots=True)
class Answer:
    """One streamed answer: the moment of asking, and every read with its moment (seconds)."""

    asked: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)

    def stream(self) -> Stream:
        """When text arrived and how many tokens it was; raises BadAnswer."""
        arrived = []
        for moment, event in self._events():
            if "error" in event:
                raise BadAnswer(str(event["error"])[:200])
            tokens = sum(count_tokens(choice.get("text") or "") for choice in _choices(event))
            if tokens:
                arrived.append((moment, tokens))
        return arrived

    def first_token_s(self) -> float:
        """Seconds from the question to the first text; raises BadAnswer."""
        stream = self.stream()
        if not stream:
            raise BadAnswer("no token")
        return stream[0][0] - self.asked

    def prompt_tokens(self) -> int | None:
        """What the server counted, where it says so."""
        usages = [event["usage"] for _, event in self._events() if event.get("usage")]
        return int(usages[-1]["prompt_tokens"]) if usages else None

    def _events(self) -> list[tuple[float, dict[str, Any]]]:
        events = []
        for moment, line in _lines(_body(self.reads)):
            if line.startswith(b"data:") and line[5:].strip() not in (b"", b"[DONE]"):
                events.append((moment, json.loads(line[5:])))
        return events


async def ask(port: int, body: dict[str, object], deadline_s: float) -> Answer:
    """Send one completion to a server on this machine and take the answer to its end.

    Raises TimeoutError, OSError or BadAnswer.
    """
    async with asyncio.timeout(deadline_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            answer = Answer(time.perf_counter())
            writer.write(_request(port, body))
            while data := await reader.read(_READ):
                answer.reads.append((time.perf_counter(), data))
                if data.endswith(b"0\r\n\r\n"):
                    break
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return answer


async def ask_all(port: int, bodies: list[dict[str, object]], deadline_s: float) -> list[Answer]:
    """Ask all at once, each on a connection of its own."""
    return await asyncio.gather(*(ask(port, body, deadline_s) for body in bodies))


def _request(port: int, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + data


def _body(reads: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The body without HTTP's chunk framing, each part with the moment at which it was complete."""
    whole = b"".join(data for _, data in reads)
    head, found, _ = whole.partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").lower().split("\r\n")
    if not found or status.split()[1:2] != ["200"]:
        raise BadAnswer(whole[:300].decode("utf-8", "replace"))
    moments = _Moments(reads)
    place = len(head) + 4
    if "transfer-encoding: chunked" not in headers:
        return [(moments.at(len(whole)), whole[place:])]
    parts: list[tuple[float, bytes]] = []
    while (size_end := whole.find(b"\r\n", place)) >= 0:
        size = int(whole[place:size_end], 16)
        end = size_end + 2 + size
        if size == 0:
            return parts
        parts.append((moments.at(end), whole[size_end + 2 : end]))
        place = end + 2
    raise BadAnswer("the answer was cut off")


class _Moments:
    """When the first n bytes were there; asked for in ascending order."""

    def __init__(self, reads: list[tuple[float, bytes]]) -> None:
        self._reads = iter(reads)
        self._moment, self._had = 0.0, 0

    def at(self, size: int) -> float:
        while self._had < size:
            self._moment, data = next(self._reads)
            self._had += len(data)
        return self._moment


def _lines(parts: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Whole lines, each with the moment of its end."""
    found: list[tuple[float, bytes]] = []
    rest = b""
    for moment, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        found.extend((moment, line.strip()) for line in lines)
    return found


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    return event.get("choices") or []
