"""What a client's own tracing says of a request: `X-Request-Id`, and `traceparent` of W3C.

A proxy may send one `X-Request-Id` with several requests. So the id of a request only begins with
it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

REQUEST_ID, TRACEPARENT = "x-request-id", "traceparent"
_SUFFIX_BYTES = 4
# With the suffix, and the number of a prompt, it fits a `request_id`.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,112}")
# An id of zeros names nothing. A version above 00 may have more fields behind these; ff is none.
_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-.*)?")
_KNOWN_FIELDS = 55


@dataclass(frozen=True, slots=True)
class Trace:
    """The ids that a client's tracing gave a request; empty where it gave none."""

    request_id: str = ""
    parent: str = ""

    @classmethod
    def of(cls, header: Callable[[str], str | None]) -> Self:
        """The trace in the headers of a request, or in the metadata of a call.

        What is no valid id is ignored, because often a proxy set it, and not the client.
        """
        name, parent = header(REQUEST_ID) or "", header(TRACEPARENT) or ""
        return cls(
            name if _REQUEST_ID.fullmatch(name) else "",
            parent[:_KNOWN_FIELDS] if _TRACEPARENT.fullmatch(parent) else "",
        )

    def new_id(self) -> str:
        """A new id for a request."""
        if not self.request_id:
            return secrets.token_hex(16)
        return f"{self.request_id}-{secrets.token_hex(_SUFFIX_BYTES)}"

    def fields(self) -> dict[str, str]:
        """What the log has of it."""
        found = {"x_request_id": self.request_id, "traceparent": self.parent}
        return {name: value for name, value in found.items() if value}


NO_TRACE = Trace()
