"""The lines of OpenAI's batch files: requests in, results out. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.api.bounded_json import on_one_line
from engine.errors import InvalidRequest

URLS = ("/v1/chat/completions", "/v1/completions")
_OK = 200


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of the file, to be posted to `url`."""

    custom_id: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request, and the reason."""

    custom_id: str | None
    message: str


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The answer of a server; `body` is JSON, or else a string."""

    status: int
    request_id: str
    body: Any


def read_input(lines: Iterable[bytes], done: Collection[str]) -> Iterator[BatchLine | BadLine]:
    """The lines of an input file, without `done` lines and empty lines.

    Of two lines with one custom_id the second is bad. Its error names no custom_id, because a
    custom_id comes once in the output.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            work = _work(line)
        except InvalidRequest as error:
            yield BadLine(None, f"line {number}: {error.message}")
            continue
        if work.custom_id in seen:
            first = seen[work.custom_id]
            yield BadLine(
                None, f"line {number}: custom_id {work.custom_id!r} is that of line {first}"
            )
            continue
        seen[work.custom_id] = number
        if work.custom_id not in done:
            yield _checked(work, number)


def successful_results(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """The custom_id and the line of every successful result of an output file, each id once.

    Incomplete lines, errors and answers with another status than 200 are left out.
    """
    seen: set[str] = set()
    for line in lines:
        custom_id = _successful_id(line)
        if custom_id is not None and custom_id not in seen:
            seen.add(custom_id)
            yield custom_id, line


def result_line(custom_id: str, reply: BatchReply) -> bytes:
    """An answer of any status, as a line of the output."""
    response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
    return _line(custom_id, response, None)


def error_line(custom_id: str | None, code: str, message: str) -> bytes:
    """A request without an answer, as a line of the output."""
    return _line(custom_id, None, {"code": code, "message": message})


def _line(custom_id: str | None, response: object, error: object) -> bytes:
    document = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    text = on_one_line(json.dumps(document, ensure_ascii=False))
    return text.encode(errors="replace") + b"\n"


def _work(line: bytes) -> BatchLine:
    """The request in a line whose body is still to be checked; raises InvalidRequest."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("not a JSON object")
    custom_id = found.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequest("custom_id must be a text that is not empty")
    return BatchLine(custom_id, str(found.get("url")), found)


def _checked(work: BatchLine, number: int) -> BatchLine | BadLine:
    """The request with its own body, or what is wrong with it."""
    line, where = work.body, f"line {number}: "
    if line.get("method", "POST") != "POST":
        return BadLine(work.custom_id, f"{where}method must be POST")
    if work.url not in URLS:
        return BadLine(work.custom_id, f"{where}url must be one of {', '.join(URLS)}")
    body = line.get("body")
    if not isinstance(body, dict):
        return BadLine(work.custom_id, f"{where}body must be an object")
    if body.get("stream"):
        return BadLine(work.custom_id, f"{where}stream is not for batches")
    return BatchLine(work.custom_id, work.url, body)


def _successful_id(line: bytes) -> str | None:
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    response = found.get("response") if isinstance(found, dict) else None
    if not isinstance(response, dict) or response.get("status_code") != _OK:
        return None
    custom_id = found.get("custom_id")
    return custom_id if isinstance(custom_id, str) and found.get("error") is None else None
