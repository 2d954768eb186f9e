"""The journal in Redis. Every call has a deadline, and raises Unavailable if it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from cluster.config.deployment import DirectoryConfig
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_client import address_of, answered, open_client
from cluster.discovery.redis_pipe import RedisScript
from cluster.discovery.timed_seal import MOST_AGE_S
from cluster.journal import scripts
from cluster.journal.batches import Appended, read_answers
from cluster.journal.entries import JournalEntry, read_entry
from cluster.journal.keys import JournalKeys, is_stream_id
from cluster.journal.records import JournalSeal
from engine.errors import NotFound
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.rare_log import RareLog
from protos.journal_pb2 import JournaledRequest
from protos.wire.secret import ClusterSecret

# Bound: a writer's call takes so long at most. Streams go on without the journal when it is late.
TIMEOUT_S = 0.5
# Bound: other calls, for which no stream waits that has its router.
_PATIENT_S = 2.0
# Bound: how long the lease of a router holds. It renews it three times as often.
LEASE_S = 1.2
# Bound: entries of one read, and reads at a time.
PIECE = 64
_READS = 8
# Bound: orders in a router's inbox, and how long it keeps them.
_ORDERS = 1000
_INBOX_S = 60.0
# Bound: unreadable streams are logged so often at most.
_LOG_EVERY_S = 60.0

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamState:
    """Who owns a stream, and how far it is. Its owner is `alive` while it renews its lease."""

    owner: str
    alive: bool
    ended: bool
    cancelled: bool


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream of a tenant, with the request as it was prepared."""

    stream_id: str
    record: JournaledRequest
    state: StreamState


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The outcome of taking a stream over. Only one that was `taken` has a fence.

    `held`: its owner lives. `ended`: nothing is left to do. `gone`: it is not there any more.
    """

    outcome: Literal["taken", "held", "ended", "gone"]
    fence: int = 0
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class StreamLife:
    """How long a stream is kept, in seconds: while it runs at most, and after its end."""

    running_s: float
    keep_s: float

    @property
    def whole_s(self) -> float:
        """From its begin on, where it never ends."""
        return self.running_s + self.keep_s


class JournalStore:
    """The streams of one namespace. `timeout_s` bounds the calls of a writer.

    A router that does not renew its lease for `lease_s` is taken for dead.
    """

    def __init__(
        self,
        client: Any,
        secret: ClusterSecret,
        life: StreamLife,
        namespace: str = "",
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self.keys = JournalKeys(namespace)
        self.seal = JournalSeal(secret, self.keys)
        self.timeout_s = timeout_s
        self.lease_s = lease_s
        self.life = life
        # Tails that read here now.
        self.tails = 0
        self._client = client
        self._reads = asyncio.Semaphore(_READS)
        self._append = RedisScript(address_of(client), scripts.APPEND)
        self._read = client.register_script(scripts.READ)
        self._take_over = client.register_script(scripts.TAKE_OVER)
        self._release = client.register_script(scripts.RELEASE)
        self._cancel = client.register_script(scripts.CANCEL)
        self._forget = client.register_script(scripts.FORGET_TENANT)
        self._listened = client.register_script(scripts.LISTENED)
        message = "streams in the journal without a seal of this cluster are not resumed"
        self._unsealed = RareLog(log, message, _LOG_EVERY_S)

    @classmethod
    def connect(
        cls,
        config: DirectoryConfig,
        secret: ClusterSecret,
        life: StreamLife,
        tls: RedisTlsConfig | None = None,
    ) -> Self:
        """A journal in the Redis of the directory; nothing is sent until the first call.

        Raises ConfigError.
        """
        client = open_client(config, _PATIENT_S, tls or RedisTlsConfig(), text=False)
        return cls(client, secret, life, config.namespace)

    async def beat(self, router: str, epoch: str) -> tuple[str, list[str]]:
        """Renew the lease of a router. Returns the epoch, and the streams that it is to cancel.

        The epoch is the given one where there was none: the journal is empty then.
        """
        pipe = self._client.pipeline(transaction=True)
        pipe.set(self.keys.epoch, epoch, nx=True)
        pipe.set(self.keys.alive(router), "", px=_ms(self.lease_s))
        pipe.lpop(self.keys.inbox(router), _ORDERS)
        pipe.get(self.keys.epoch)
        _, _, orders, found = await self._call(pipe.execute(), self.timeout_s)
        return found.decode(), [order.decode(errors="replace") for order in orders or ()]

    async def leave(self, router: str) -> None:
        """End the lease of a router, so that others may take its streams over at once."""
        await self._call(self._client.delete(self.keys.alive(router)))

    async def append(
        self, writer: str, epoch: str, last: str, turn: str, parts: Sequence[bytes]
    ) -> list[Appended] | None:
        """Append a batch to streams of the router `writer`, one part each (batches.part).

        None: the epoch is another one, or its `last` batch is, and nothing was written. Without
        `last` each part must have the flag CHECK or CREATE. `turn` names this batch. A checked
        part that was applied before changes nothing, and is answered in the same way.
        """
        life = _ms(self.life.whole_s), _ms(self.life.keep_s)
        args = (self.keys.prefix, epoch, *life, writer, last, turn, b"".join(parts))
        answers: bytes = await self._call(self._append.call(args), self.timeout_s)
        return read_answers(answers) or None

    async def find(self, stream_id: str, tenant: str | None) -> StoredStream:
        """A tenant's stream, or with None anybody's; NotFound where there is none of that id."""
        if is_stream_id(stream_id):
            found = await self._reading(stream_id, 0, count=0, request=True, listening=False)
            if found is not None:
                record = self._opened(stream_id, found[5])
                if record is not None and tenant in (None, record.request.tenant or DEFAULT_TENANT):
                    return StoredStream(stream_id, record, _state(found))
        raise NotFound("there is no such stream, or it ended too long ago", field="stream_id")

    async def read(
        self, stream_id: str, after: int, *, listening: bool = False
    ) -> tuple[StreamState, list[JournalEntry]]:
        """The state of a stream, and at most PIECE entries behind the sequence number `after`.

        With `listening` its owner learns that somebody listens here. Raises NotFound where the
        stream is gone, or an entry has no seal of its place.
        """
        found = await self._reading(
            stream_id, after, count=PIECE, request=False, listening=listening
        )
        if found is None:
            raise NotFound("the stream ended too long ago", field="stream_id")
        seal, entries = self.seal.entries(stream_id), []
        for sequence, (name, fields) in enumerate(found[6], after + 1):
            opened = seal.opened(sequence, fields[1]) if name == b"%d-0" % sequence else None
            entry = opened and read_entry(sequence, opened[1], fields[1])
            if entry is None:
                self._unsealed.note()
                raise NotFound("the journal of the stream cannot be read", field="stream_id")
            entries.append(entry)
        return _state(found), entries

    async def read_all(self, stream_id: str) -> list[JournalEntry]:
        """All entries of a stream. Raises NotFound as `read` does."""
        entries: list[JournalEntry] = []
        while True:
            _, piece = await self.read(stream_id, len(entries))
            entries += piece
            if len(piece) < PIECE:
                return entries

    async def take_over(self, stream_id: str, router: str) -> TakeOver:
        """Make a router the owner of a stream whose owner is dead, or has the same name.

        From then on Redis refuses the entries of the earlier owner.
        """
        keys = [self.keys.stream(stream_id), self.keys.events(stream_id)]
        life_ms, index = _ms(self.life.whole_s), self.keys.tenant("")
        args = (router, self.keys.alive_prefix, life_ms, index, stream_id, self.keys.turn(""))
        outcome, fence, cancelled = await self._call(self._take_over(keys=keys, args=args))
        return TakeOver(outcome.decode(), fence, bool(cancelled))

    async def release(self, stream_id: str, router: str) -> None:
        """Let any router take over a stream that this router owns and does not run."""
        keys = [self.keys.stream(stream_id), self.keys.turn(router)]
        await self._call(self._release(keys=keys, args=(router,)))

    async def cancel(self, stream_id: str, tenant: str | None) -> bool:
        """Have the owner of a tenant's stream cancel it; False where the tenant has none running.

        A router that takes the stream over later learns of it, too.
        """
        try:
            await self.find(stream_id, tenant)
        except NotFound:
            return False
        keys, limits = [self.keys.stream(stream_id)], (_ORDERS, _ms(_INBOX_S))
        args = (self.keys.inbox(""), stream_id, *limits, self.keys.turn(""))
        return bool(await self._call(self._cancel(keys=keys, args=args)))

    async def listened_ago_s(self, stream_id: str) -> float | None:
        """How long ago a reader on any router listened to a stream; None: none did."""
        ms = await self._call(self._listened(keys=[self.keys.stream(stream_id)]))
        return None if ms is None else ms / 1000

    async def forget_tenant(self, tenant: str) -> int:
        """Remove all streams of a tenant; returns their number."""
        keys, args = [self.keys.tenant(tenant)], (self.keys.stream(""),)
        return int(await self._call(self._forget(keys=keys, args=args)))

    async def close(self) -> None:
        """Close the connections."""
        self._append.close()
        await self._client.aclose()

    async def _reading(
        self, stream_id: str, after: int, *, count: int, request: bool, listening: bool
    ) -> list[Any] | None:
        keys = [self.keys.stream(stream_id), self.keys.events(stream_id)]
        args = (after, count, self.keys.alive_prefix, int(request), int(listening))

        async def in_turn() -> list[Any] | None:
            async with self._reads:
                found: list[Any] | None = await self._read(keys=keys, args=args)
                return found

        return await self._call(in_turn())

    def _opened(self, stream_id: str, stored: bytes) -> JournaledRequest | None:
        """The request; None where it has no seal, or is so old that Redis had dropped it."""
        record = self.seal.opened_request(stream_id, stored)
        if record is None:
            self._unsealed.note()
        elif time.time() - record.arrived_at > self.life.whole_s + MOST_AGE_S:
            return None
        return record

    async def _call(self, command: Awaitable[T], timeout_s: float = _PATIENT_S) -> T:
        return await answered(command, timeout_s)


def _state(found: list[Any]) -> StreamState:
    owner, _, ended, cancelled, alive = found[:5]
    return StreamState(owner.decode(errors="replace"), bool(alive), bool(ended), bool(cancelled))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
