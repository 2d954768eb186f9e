"""The directory: the living replicas, as leases in Redis. `redis_client` connects it.

    tandem:replica:<id>   a record as JSON behind its seal; expires with the lease
    tandem:replicas       the set of ids that may be alive; cleaned as it is read
    tandem:born           when the first lease came here, ns since the epoch; lost with the data
    tandem:left           ids that left on purpose, with the time (seconds since the epoch)
    tandem:desired        how many replicas pools should have, as JSON; expires
    tandem:routers        the state that each router published last for its peers, by router
    tandem:api_keys       tenant by the hash of its key, and :version, which rises with each change
    tandem:operator_keys  operator by the hash of its key; tandem:metrics_keys: readers of metrics
    tandem:key_seals      the seal of each key by its hash
    tandem:launcher       the name of the `tandem serve` that listens for requests; expires
    tandem:stop           a stop request: its seal
    tandem:rollout        a configuration that should take over, and :state, how far that is
    tandem:starting       ids of replicas that start, and :<id>, what a replica says of its start

With a namespace the keys are tandem:<namespace>:replica:<id>, and so on. All namespaces share the
API keys. The cluster's secret seals records and keys (`stored_values.py`). The commands are those
of Redis 6.2. Every call has a deadline, and raises Unavailable if it fails.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar, cast

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import Right
from cluster.config.schema import TandemConfig
from cluster.config.tls import RedisTlsConfig
from cluster.discovery.redis_client import answered, open_client
from cluster.discovery.starting_replicas import StartingReplicas
from cluster.discovery.stored_values import (
    SealedRecords,
    StoredKey,
    read_desired,
    seal_of_key,
    stored_keys,
)
from cluster.replica_record import Census, Pool, ReplicaRecord
from protos.wire.secret import ClusterSecret

PREFIX = "tandem:"
# All namespaces share these: a cluster that takes over from another knows the same API keys.
_KEYS: Mapping[Right, str] = {
    "tenant": f"{PREFIX}api_keys",
    "operator": f"{PREFIX}operator_keys",
    "metrics": f"{PREFIX}metrics_keys",
}
_KEYS_VERSION = f"{PREFIX}api_keys:version"
_KEY_SEALS = f"{PREFIX}key_seals"
# Bound: how long a request to the launcher stands, and how long desired replicas are believed.
_STOP_LEASE_MS = 60_000
_DESIRED_LEASE_MS = 60_000
# Bound: how long it is known that a replica left; longer than any reader keeps a silent one.
_LEFT_S = 600

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Directory:
    """Membership by lease, and what routers, replicas and the launcher tell each other.

    `timeout_s` bounds every call. Directories of two namespaces in one Redis share the API keys
    alone. `starting` has the replicas that start.
    """

    def __init__(
        self,
        client: Any,
        secret: ClusterSecret,
        lease_s: float = 3.0,
        timeout_s: float = 1.0,
        namespace: str = "",
    ) -> None:
        self.lease_s = lease_s
        self._secret = secret
        self._records = SealedRecords(secret)
        self._prefix = f"{PREFIX}{namespace}:" if namespace else PREFIX
        self._index = f"{self._prefix}replicas"
        self._born = f"{self._prefix}born"
        self._left = f"{self._prefix}left"
        self._desired = f"{self._prefix}desired"
        self._routers = f"{self._prefix}routers"
        self._launcher = f"{self._prefix}launcher"
        self._stop = f"{self._prefix}stop"
        self._rollout = f"{self._prefix}rollout"
        self._rollout_state = f"{self._rollout}:state"
        self._client = client
        self._lease_ms = round(lease_s * 1000)
        self._timeout_s = timeout_s
        self.starting = StartingReplicas(client, self._prefix, secret, self._call)

    @classmethod
    def of(cls, config: TandemConfig) -> Directory:
        """The directory of the cluster of that configuration. Raises ConfigError."""
        return cls.connect(config.directory, config.security.read_secret(), config.tls.redis)

    @classmethod
    def connect(
        cls, config: DirectoryConfig, secret: ClusterSecret, tls: RedisTlsConfig | None = None
    ) -> Directory:
        """A directory at `config.url`; nothing is sent until the first call. Raises ConfigError.

        `tls` names the files by which a server at a `rediss://` address is verified.
        """
        # No call outlasts the time between two heartbeats, so one lost answer costs one beat.
        timeout_s = min(1.0, config.heartbeat_s)
        client = open_client(config, timeout_s, tls or RedisTlsConfig())
        return cls(client, secret, config.lease_s, timeout_s, config.namespace)

    async def register(self, record: ReplicaRecord) -> None:
        """Put a replica in the directory for one lease, also one that had left before."""
        pipe = self._client.pipeline(transaction=True)
        pipe.zrem(self._left, record.id)
        self._put(pipe, record)
        await self._call(pipe.execute())

    async def renew(self, record: ReplicaRecord) -> None:
        """Store the record anew and begin its lease again, also where it had run out."""
        pipe = self._client.pipeline(transaction=True)
        self._put(pipe, record)
        await self._call(pipe.execute())

    async def remove(self, replica_id: str) -> None:
        """Take a replica out at once, on purpose. Unknown ids are no error."""
        now = time.time()
        pipe = self._client.pipeline(transaction=True)
        pipe.delete(self._key(replica_id))
        pipe.srem(self._index, replica_id)
        # A beat that was cut off may arrive later than this.
        pipe.zadd(self._left, {replica_id: now})
        pipe.zremrangebyscore(self._left, "-inf", now - _LEFT_S)
        await self._call(pipe.execute())

    async def members(self) -> list[ReplicaRecord]:
        """Every replica whose lease holds, ordered by id."""
        return list((await self.census()).members)

    async def census(self) -> Census:
        """The replicas whose leases hold, the ids that left on purpose, and when the data began."""
        # Not at one instant, which costs a third more. The records are read last.
        pipe = self._client.pipeline(transaction=False)
        pipe.smembers(self._index)
        pipe.zrange(self._left, 0, -1)
        known, left = await self._call(pipe.execute())
        ids = sorted(set(known).difference(left))
        # At one instant with the records, so that all of them belong to the same data.
        keys = [self._key(name) for name in ids]
        born, *values = await self._call(self._client.mget([self._born, *keys]))
        # An id dropped here while its replica renews comes back with the next heartbeat.
        if gone := [name for name, value in zip(ids, values, strict=True) if value is None]:
            await self._call(self._client.srem(self._index, *gone))
        stored = [(key, value) for key, value in zip(keys, values, strict=True) if value]
        read = (self._records.read(key, value) for key, value in stored)
        return Census(tuple(one for one in read if one), frozenset(left), born)

    async def set_desired(self, desired: Mapping[Pool, int]) -> None:
        """Publish how many replicas pools should have. It expires within a minute."""
        await self._call(self._client.set(self._desired, json.dumps(desired), px=_DESIRED_LEASE_MS))

    async def desired(self) -> dict[Pool, int]:
        """The desired numbers of replicas by pool, without pools that have no published number."""
        text = await self._call(self._client.get(self._desired))
        return read_desired(text) if text else {}

    async def exchange(self, router: str, state: str) -> dict[str, str]:
        """Publish a router's state, and read the states of all routers, at one instant."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hset(self._routers, router, state)
        pipe.hgetall(self._routers)
        _, states = await self._call(pipe.execute())
        return dict(states)

    async def forget_peer_states(self, routers: Sequence[str]) -> None:
        """Drop the states of these routers."""
        await self._call(self._client.hdel(self._routers, *routers))

    async def api_keys_version(self) -> str | None:
        """A text that differs after each change of the keys; None if there never were keys."""
        return cast("str | None", await self._call(self._client.get(_KEYS_VERSION)))

    async def api_keys(self) -> tuple[str | None, list[StoredKey]]:
        """The keys' version, and all entries, sealed or not, at one instant."""
        pipe = self._client.pipeline(transaction=True)
        pipe.get(_KEYS_VERSION)
        for name in (_KEY_SEALS, *_KEYS.values()):
            pipe.hgetall(name)
        version, seals, *owners = await self._call(pipe.execute())
        entries = dict(zip(_KEYS, owners, strict=True))
        return version, list(stored_keys(self._secret, entries, seals))

    async def add_api_key(self, digest: str, owner: str, right: Right = "tenant") -> None:
        """Give the owner the key of this hash, with a seal."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hset(_KEYS[right], digest, owner)
        pipe.hset(_KEY_SEALS, digest, seal_of_key(self._secret, digest, owner, right))
        pipe.incr(_KEYS_VERSION)
        await self._call(pipe.execute())

    async def remove_api_key(self, digest: str) -> None:
        """Remove the key of this hash."""
        pipe = self._client.pipeline(transaction=True)
        for name in (_KEY_SEALS, *_KEYS.values()):
            pipe.hdel(name, digest)
        pipe.incr(_KEYS_VERSION)
        await self._call(pipe.execute())

    async def launcher(self) -> str | None:
        """The name of the `tandem serve` that listens for requests; None if none does."""
        return cast("str | None", await self._call(self._client.get(self._launcher)))

    async def request_stop(self, seal: str) -> bool:
        """Ask the `tandem serve` that started this cluster to end; False if none listens."""
        if not await self._call(self._client.exists(self._launcher)):
            return False
        await self._call(self._client.set(self._stop, seal, px=_STOP_LEASE_MS))
        return True

    async def drop_stop(self) -> None:
        """Drop a stop request."""
        await self._call(self._client.delete(self._stop))

    async def request_rollout(self, request: str, state: str) -> bool:
        """Request a rollout of the `tandem serve` of this cluster; False if none listens."""
        if not await self._call(self._client.exists(self._launcher)):
            return False
        pipe = self._client.pipeline(transaction=True)
        pipe.set(self._rollout, request, px=_STOP_LEASE_MS)
        # Both expire, so nothing is left of a request that no launcher takes.
        pipe.set(self._rollout_state, state, px=_STOP_LEASE_MS)
        await self._call(pipe.execute())
        return True

    async def take_rollout(self) -> str | None:
        """Take the requested rollout; None if there is none."""
        found: str | None = await self._call(self._client.getdel(self._rollout))
        return found

    async def set_rollout_state(self, state: str) -> None:
        """Publish the state of the last rollout."""
        await self._call(self._client.set(self._rollout_state, state))

    async def rollout_state(self) -> str | None:
        """The state of the last rollout; None if there was none."""
        found: str | None = await self._call(self._client.get(self._rollout_state))
        return found

    async def listen_for_stop(self, launcher: str) -> str | None:
        """Note that the launcher of that name, which calls this often, listens.

        Returns the seal of a stop request; None if there is none.
        """
        px = max(self._lease_ms, 5000)
        await self._call(self._client.set(self._launcher, launcher, px=px))
        return cast("str | None", await self._call(self._client.get(self._stop)))

    async def clear_stop(self) -> None:
        """Drop earlier requests to the launcher, and the sign that a launcher listens."""
        keys = (self._stop, self._launcher, self._rollout, self._rollout_state)
        await self._call(self._client.delete(*keys))

    async def ping(self) -> None:
        """Raise Unavailable unless Redis answers."""
        await self._call(self._client.ping())

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _put(self, pipe: Any, record: ReplicaRecord) -> None:
        pipe.set(self._born, time.time_ns(), nx=True)
        key = self._key(record.id)
        pipe.set(key, self._records.written(key, record), px=self._lease_ms)
        pipe.sadd(self._index, record.id)

    def _key(self, replica_id: str) -> str:
        return f"{self._prefix}replica:{replica_id}"

    async def _call(self, command: Awaitable[T]) -> T:
        return await answered(command, self._timeout_s)
