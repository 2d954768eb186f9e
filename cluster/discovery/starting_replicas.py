"""The replicas that are still starting, and how far each is, as they say it in Redis.

tandem:starting:<id>   what a replica said last, as JSON behind its seal; expires
tandem:starting        the set of ids that may be starting; cleaned as it is read
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.discovery.timed_seal import TimedSeal
from cluster.display_text import long_time, plain
from engine.errors import Unavailable
from engine.rare_log import RareLog
from protos.wire.secret import ClusterSecret

if TYPE_CHECKING:
    from cluster.discovery.redis_directory import Directory

_SUBJECT = "starting replica"
# The stage of a replica whose start has ended well.
READY = "ready"
# Bound: how long a statement stands. Importing torch keeps a replica from another one that long.
LEASE_MS = 20_000
# Bound: what is shown of a name.
_MOST_CHARACTERS = 120
_LOG_EVERY_S = 60.0
_PREFIXES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartingReplica:
    """A replica and the stage of its start, in which it is for `stage_s` seconds.

    It has done `done` of `total` bytes or steps (0: not known), `rate` a second, and needs about
    `left_s` for the rest. `weights_bytes` were read in `weights_s`, once they are.
    """

    id: str
    role: str
    stage: str
    stage_s: float = 0.0
    done: int = 0
    total: int = 0
    unit: str = "steps"
    rate: float | None = None
    left_s: float | None = None
    weights_bytes: int = 0
    weights_s: float = 0.0

    def to_json(self) -> str:
        """What is stored."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StartingReplica:
        """Read it; unknown fields are ignored. Raises ValueError if it is bad."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("not a starting replica")
        kinds: dict[str, Any] = {one.name: _KINDS[str(one.type)] for one in fields(cls)}
        try:
            read = {name: kind(data[name]) for name, kind in kinds.items() if name in data}
            return cls(**read)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not a starting replica: {error}") from None

    @property
    def progress(self) -> str:
        """The stage and how far it is: `weights, 42.0 of 140 GB, 1.2 GB/s, about 82 s left`."""
        parts = [self.stage]
        if self.total and self.unit == "bytes":
            parts.append(f"{bytes_text(self.done)} of {bytes_text(self.total)}")
            if self.rate is not None:
                parts.append(f"{bytes_text(self.rate)}/s")
        elif self.total:
            parts.append(f"{self.done} of {self.total} steps")
        elif self.stage_s >= 1:
            parts.append(long_time(self.stage_s))
        if self.left_s is not None:
            parts.append(f"about {long_time(self.left_s)} left")
        return ", ".join(parts)

    @property
    def shown(self) -> dict[str, Any]:
        """What routers show of it."""
        names = ("id", "role", "stage", "progress", "done", "total", "unit", "left_s")
        return {name: getattr(self, name) for name in names}

    @property
    def weights(self) -> str:
        """What its weights took: `weights, 140 GB in 98.1 s`; "" before they are read."""
        if not self.weights_bytes:
            return ""
        return f"weights, {bytes_text(self.weights_bytes)} in {self.weights_s:.1f} s"


class StartingReplicas:
    """What starting replicas say of themselves; see Directory, whose `call` bounds each call."""

    def __init__(
        self,
        client: Any,
        prefix: str,
        secret: ClusterSecret,
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._client = client
        self._index = f"{prefix}starting"
        self._seal = TimedSeal(secret)
        self._call = call
        message = "statements of starting replicas without a seal of this cluster are not seen"
        self._unsealed = RareLog(logger, message, _LOG_EVERY_S)

    async def tell(self, replica: StartingReplica) -> None:
        """Say how far a replica is, for the next seconds."""
        key, text = self._key(replica.id), replica.to_json()
        pipe = self._client.pipeline(transaction=True)
        pipe.set(key, f"{self._seal.of(_SUBJECT, key, text)} {text}", px=LEASE_MS)
        pipe.sadd(self._index, replica.id)
        await self._call(pipe.execute())

    async def withdraw(self, replica_id: str) -> None:
        """Say no more of a replica, whose start has failed."""
        pipe = self._client.pipeline(transaction=True)
        pipe.delete(self._key(replica_id))
        pipe.srem(self._index, replica_id)
        await self._call(pipe.execute())

    async def all(self) -> list[StartingReplica]:
        """What replicas say that start, or have started in the last seconds, ordered by id."""
        ids = sorted(await self._call(self._client.smembers(self._index)))
        if not ids:
            return []
        keys = [self._key(name) for name in ids]
        values = await self._call(self._client.mget(keys))
        if gone := [name for name, value in zip(ids, values, strict=True) if value is None]:
            await self._call(self._client.srem(self._index, *gone))
        read = (self._read(key, value) for key, value in zip(keys, values, strict=True) if value)
        return [one for one in read if one is not None]

    async def unfinished(self) -> list[StartingReplica]:
        """Those that still start; none while the directory does not answer."""
        try:
            return [one for one in await self.all() if one.stage != READY]
        except Unavailable:
            return []

    def _read(self, key: str, value: str) -> StartingReplica | None:
        seal, _, text = value.partition(" ")
        if not self._seal.fits(seal, _SUBJECT, key, text):
            self._unsealed.note()
            return None
        try:
            return StartingReplica.from_json(text)
        except ValueError:
            return None  # another version wrote it; it is shown once, and nothing depends on it

    def _key(self, replica_id: str) -> str:
        return f"{self._index}:{replica_id}"


class StartWatch:
    """Reads what starting replicas say, for a thread without an event loop. Use it as a context."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._runner = asyncio.Runner()

    def __enter__(self) -> StartWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._directory.close())
        self._runner.close()

    def look(self) -> Sequence[StartingReplica]:
        """What they say now; nothing while the directory does not answer."""
        try:
            return self._runner.run(self._directory.starting.all())
        except Unavailable:
            return ()


def bytes_text(count: float) -> str:
    """A number of bytes with three digits: `1.20 GB`, `140 GB`."""
    for size, name in _PREFIXES:
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {name}"
    return f"{count:.0f} B"


def _name(value: object) -> str:
    """A text that is fit for a terminal."""
    return plain(str(value)[:_MOST_CHARACTERS], "?")


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "str": _name, "int": int, "float": float, "float | None": _maybe
}  # fmt: skip
