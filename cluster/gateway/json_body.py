"""Reads JSON bodies: bounded in bytes and in time, and strict JSON only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from cluster.api.bounded_json import parse
from cluster.api.off_loop import off_loop
from cluster.gateway.connections.byte_budget import ByteBudget, Reservation
from engine.errors import InvalidRequest, Overloaded, shown

READ_S = 30.0
JSON_TYPE = "application/json"
_DRAIN_S = 2.0
_DRAIN_FACTOR = 8
_LONGEST_LENGTH = 20  # digits
_T = TypeVar("_T")


async def read_json(
    request: Request, max_bytes: int, budget: ByteBudget, take: Callable[[Any], _T]
) -> _T:
    """What `take` makes of the body as JSON; a large body is parsed and taken on a thread.

    `budget` bounds the bodies of all requests that are being read. Raises what `take` raises,
    InvalidRequest, Overloaded, ClientDisconnect, and HTTPException 408, 413 or 415.

    A body without a type is refused, too: a page of any site can have a browser send it.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise HTTPException(415, f"the body must be JSON: send Content-Type: {JSON_TYPE}")
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        message = f"the body has Content-Encoding {shown(encoding)}: send it without one"
        raise HTTPException(415, message, {"accept-encoding": "identity"})
    reservation = Reservation(budget)
    try:
        body = await _read(request, max_bytes, reservation)
    finally:
        reservation.release()

    def taken() -> _T:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8: byte {error.start}") from None
        return take(parse_json(text, "the body"))

    return await off_loop(len(body), taken)


def parse_json(text: str, what: str) -> Any:
    """`text` as JSON; raises InvalidRequest, which calls it `what`."""
    try:
        return parse(text, _refuse_constant)
    except InvalidRequest as error:
        raise InvalidRequest(f"{what} has {error.message}", field=error.field) from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{what} has a number too long or is nested too deep") from None


async def _read(request: Request, max_bytes: int, reservation: Reservation) -> bytes:
    found = bytearray()
    more = True
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _LONGEST_LENGTH or int(length) > max_bytes):
        # The connection drops the body.
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(READ_S):
            while more and len(found) <= max_bytes:
                piece, more = await _piece(request)
                found += piece
                if not reservation.resize(len(found)):
                    raise Overloaded("too many large bodies at once", retry_after_s=1.0)
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {READ_S:g} s") from None
    if len(found) <= max_bytes:
        return bytes(found)
    if more:
        await _drain(request, max_bytes * _DRAIN_FACTOR)
    raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {max_bytes} bytes")


async def _drain(request: Request, most: int) -> None:
    """Read on for a while, because a client does not see an answer while it writes."""
    more = True
    try:
        async with asyncio.timeout(_DRAIN_S):
            while more and most > 0:
                piece, more = await _piece(request)
                most -= len(piece)
    except TimeoutError:
        return


async def _piece(request: Request) -> tuple[bytes, bool]:
    """The next piece of the body, and whether more will come."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name}, which is no number of JSON")
