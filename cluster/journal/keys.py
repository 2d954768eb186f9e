"""The ids of streams, and the names of the journal in Redis.

    tandem:stream:<id>             a hash: request, tenant, owner, fence; the marks cancelled,
                                   listened (a time), ended
    tandem:stream:<id>:events      a Redis stream; the id of an entry is its sequence number, from 1
    tandem:journal:epoch           drawn when the journal began here; lost with the data
    tandem:journal:alive:<router>  a lease, while the router renews it
    tandem:journal:turn:<router>   names the last batch of the router; removed once another router
                                   changed a stream of it, which it checks then
    tandem:journal:inbox:<router>  stream ids that the router is to cancel
    tandem:journal:tenant:<name>   the stream ids of a tenant, each with the time when it expires

With a namespace the names begin with tandem:<namespace>:.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from cluster.discovery.redis_directory import PREFIX

ID_CHARACTERS = 22
_ID = re.compile(rf"[A-Za-z0-9_-]{{{ID_CHARACTERS}}}")


def new_stream_id() -> str:
    """An id of 128 random bits, which nobody can guess."""
    return secrets.token_urlsafe(16)


def is_stream_id(text: str) -> bool:
    """Whether the text has the form of a stream id."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class JournalKeys:
    """The names in one namespace."""

    namespace: str = ""

    @property
    def prefix(self) -> str:
        """The beginning of all names."""
        return f"{PREFIX}{self.namespace}:" if self.namespace else PREFIX

    @property
    def epoch(self) -> str:
        """The key of the epoch."""
        return f"{self.prefix}journal:epoch"

    @property
    def alive_prefix(self) -> str:
        """The beginning of the keys of all routers' leases."""
        return f"{self.prefix}journal:alive:"

    def stream(self, stream_id: str) -> str:
        """The hash of a stream."""
        return f"{self.prefix}stream:{stream_id}"

    def events(self, stream_id: str) -> str:
        """The entries of a stream."""
        return f"{self.prefix}stream:{stream_id}:events"

    def alive(self, router: str) -> str:
        """The lease of a router."""
        return f"{self.alive_prefix}{router}"

    def turn(self, router: str) -> str:
        """The last batch of a router."""
        return f"{self.prefix}journal:turn:{router}"

    def inbox(self, router: str) -> str:
        """The orders to a router."""
        return f"{self.prefix}journal:inbox:{router}"

    def tenant(self, tenant: str) -> str:
        """The streams of a tenant."""
        return f"{self.prefix}journal:tenant:{tenant}"
