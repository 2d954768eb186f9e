"""The recorded answer of one HTTP connection, which is parsed after the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from bench.core.prompts import count_tokens
from bench.core.statistics import Stream

Event = dict[str, Any]


class BadAnswer(Exception):
    """The server answered with an error or in an unexpected form; `status` is that of an error."""

    def __init__(self, message: str, status: bytes = b"") -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class RecordedAnswer:
    """One streamed answer: the time of the request, and every read with its time (seconds)."""

    asked: float
    reads: list[tuple[float, bytes]] = field(default_factory=list)

    def stream(self) -> Stream:
        """The times of texts and their numbers of tokens; raises BadAnswer."""
        arrived = []
        for moment, event in self.events():
            tokens = sum(count_tokens(text_of(choice)) for choice in choices(event))
            if tokens:
                arrived.append((moment, tokens))
        return arrived

    def first_token_s(self) -> float:
        """Seconds from the request to the first text; raises BadAnswer."""
        stream = self.stream()
        if not stream:
            raise BadAnswer("no token")
        return stream[0][0] - self.asked

    def prompt_tokens(self) -> int | None:
        """The prompt tokens that the server counted; None if it does not tell."""
        usages = [event["usage"] for _, event in self.events() if event.get("usage")]
        return int(usages[-1]["prompt_tokens"]) if usages else None

    def status(self) -> int:
        """The HTTP status; raises BadAnswer where there is none."""
        line = self._whole().split(b"\r\n", 1)[0].split()
        if len(line) < 2 or not line[1].isdigit():
            raise BadAnswer("no status")
        return int(line[1])

    def retry_after_s(self) -> float | None:
        """The retry time of a refusal, in seconds; the finer of the two headers counts."""
        found = headers(self._whole())
        for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
            try:
                return float(found[name]) * unit_s
            except (KeyError, ValueError):
                continue
        return None

    def decided_s(self) -> float | None:
        """Seconds from arrival to the decision to refuse, by the server's header."""
        try:
            return float(headers(self._whole())["x-decided-ms"]) / 1000
        except (KeyError, ValueError):
            return None

    def body(self) -> bytes:
        """The body of an answer with status 200; raises BadAnswer."""
        return b"".join(data for _, data in _body(self.reads))

    def events(self) -> list[tuple[float, Event]]:
        """Server-sent events, each with the moment of its end; raises BadAnswer, also for errors
        that are told in an event."""
        events = []
        for moment, line in _lines(_body(self.reads)):
            if line.startswith(b"data:") and line[5:].strip() not in (b"", b"[DONE]"):
                event = json.loads(line[5:])
                if "error" in event:
                    raise BadAnswer(str(event["error"])[:200])
                events.append((moment, event))
        return events

    def _whole(self) -> bytes:
        return b"".join(data for _, data in self.reads)


def choices(event: Event) -> list[dict[str, Any]]:
    """The choices of an event, of which there may be none."""
    return event.get("choices") or []


def text_of(choice: dict[str, Any]) -> str:
    """The text of a completion's choice, or of a chat's."""
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def headers(answer: bytes) -> dict[str, str]:
    """An answer's headers, with names in lower case."""
    lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _body(reads: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The body without HTTP's chunk framing, each part with the moment at which it was complete."""
    whole = b"".join(data for _, data in reads)
    head, found, body = whole.partition(b"\r\n\r\n")
    if whole and not whole.startswith(b"HTTP/"):
        raise BadAnswer("it speaks no HTTP/1.1; a router's gRPC port is not its HTTP port")
    status = b"".join(head.split(b" ", 2)[1:2])
    if not found or status != b"200":
        told = head.partition(b"\r\n")[0] + b": " + body if found else whole
        raise BadAnswer(told[:300].decode("utf-8", "replace"), status)
    moments = _Moments(reads)
    position = len(head) + 4
    if headers(whole).get("transfer-encoding", "").lower() != "chunked":
        return [(moments.at(len(whole)), whole[position:])]
    parts: list[tuple[float, bytes]] = []
    while (size_end := whole.find(b"\r\n", position)) >= 0:
        size = int(whole[position:size_end], 16)
        end = size_end + 2 + size
        if end > len(whole):
            break
        if size == 0:
            return parts
        parts.append((moments.at(end), whole[size_end + 2 : end]))
        position = end + 2
    raise BadAnswer("the answer was cut off")


class _Moments:
    """The time at which the first n bytes had arrived, for ascending n."""

    def __init__(self, reads: list[tuple[float, bytes]]) -> None:
        self._reads = iter(reads)
        self._moment, self._had = 0.0, 0

    def at(self, size: int) -> float:
        while self._had < size:
            self._moment, data = next(self._reads)
            self._had += len(data)
        return self._moment


def _lines(parts: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Complete lines, each with the time of its end."""
    found: list[tuple[float, bytes]] = []
    rest = b""
    for moment, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        found.extend((moment, line.strip()) for line in lines)
    return found
