"""A client of server-sent events that keeps to the standard.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EventSource:
    """The data of the events that came whole, and the id of the last one."""

    data: list[str] = field(default_factory=list)
    last_id: str | None = None

    def read(self, stream: bytes) -> EventSource:
        """Take the bytes of one connection, which may end anywhere."""
        buffer, found = self.last_id, []
        *lines, _ = stream.split(b"\n")
        for line in lines:
            if not line:
                self.last_id = buffer
                if found:
                    self.data.append("\n".join(found))
                found = []
                continue
            name, _, value = line.decode().partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                found.append(value)
            elif name == "id":
                buffer = value
        return self
