"""A rollout: another model or configuration takes over from the one that runs. No Ray here.

    asked → starting → serving | failed

The replicas of the new configuration start beside the old ones. Once all of them serve, Serve ends
the old ones, which end what they have begun (`cluster/discovery/version_handover.py`). Where the
new ones do not come
up the old ones go on, and the old configuration is deployed again, so that it is what Serve keeps.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol, get_args

from cluster.config.schema import TandemConfig, parse_config
from cluster.config.version import config_version
from cluster.discovery.redis_directory import Directory
from cluster.replica_record import Pool, ReplicaRecord
from engine.errors import ConfigError, TandemError, Unavailable

log = logging.getLogger(__name__)

State = Literal["asked", "starting", "serving", "failed"]
UNDER_WAY: tuple[State, ...] = ("asked", "starting")
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What is asked of the launcher; `configuration` is all of it, as JSON."""

    id: str
    configuration: str

    def to_json(self) -> str:
        """The request as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RolloutRequest:
        """Read a request; ValueError where it is none."""
        data = json.loads(text)
        return cls(str(data["id"]), str(data["configuration"]))


@dataclass(frozen=True, slots=True)
class RolloutState:
    """How far a rollout is; `version` is that of the new configuration, `reason` why it failed."""

    id: str
    version: str = ""
    state: State = "asked"
    reason: str = ""

    def to_json(self) -> str:
        """The state as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RolloutState:
        """Read a state; ValueError where it is none."""
        try:
            state = cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a rollout's state: {error}") from None
        if state.state not in get_args(State):
            raise ValueError(f"not a rollout's state: {state.state!r}")
        return state


class Deployer(Protocol):
    """What puts a configuration on the cluster; `RayCluster` is one."""

    def begin(self, config: TandemConfig) -> None:
        """Have its replicas started beside those that run. Raises Unavailable."""
        ...

    def failure(self) -> str | None:
        """Why they will not come up; None while they may. Raises Unavailable."""
        ...


class Rollouts:
    """Carries out what is asked for, one after the other. `config` is what runs."""

    def __init__(
        self,
        config: TandemConfig,
        deployer: Deployer,
        prepare: Callable[[TandemConfig], TandemConfig],
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self._deployer = deployer
        self._prepare = prepare
        self._say = say
        self._untold: RolloutState | None = None

    async def look(self, directory: Directory) -> None:
        """Carry out a rollout if one is asked for; returns when it serves, or failed.

        Raises Unavailable where the directory cannot be read, or told how the last one ended.
        """
        if self._untold is not None:
            await directory.set_rollout_state(self._untold.to_json())
            self._untold = None
        text = await directory.take_rollout()
        if text is None:
            return
        state = await self._carry_out(RolloutRequest.from_json(text), directory)
        what = f"rollout {state.version}".rstrip()  # one that was refused has no version
        self._say(f"{what}: {state.state} {state.reason}".rstrip())
        # As long as nobody knows that it is over, no other one can be asked for.
        self._untold = None if await _tell(directory, state) else state

    async def _carry_out(self, request: RolloutRequest, directory: Directory) -> RolloutState:
        state = RolloutState(request.id)
        await _tell(directory, state)  # for longer than it could wait to be taken
        try:
            config = following(self.config, parse_config(json.loads(request.configuration)))
            config = await asyncio.to_thread(self._prepare, config)
            state = replace(state, version=config_version(config), state="starting")
            await _tell(directory, state)
            if config != self.config:
                await self._replace(config, state.version, directory)
            return replace(state, state="serving")
        except (TandemError, ValueError) as error:
            reason = error.message if isinstance(error, TandemError) else str(error)
        except Exception as error:
            log.exception("a rollout ended in a fault")
            reason = f"internal error: {type(error).__name__}"
        return replace(state, state="failed", reason=reason)

    async def _replace(self, config: TandemConfig, version: str, directory: Directory) -> None:
        self._say(f"rollout {version}: starting")
        until_s = time.monotonic() + config.ray.ready_timeout_s
        try:
            await asyncio.to_thread(self._deployer.begin, config)
            while not there(config, version, await _members(directory)):
                if (reason := await asyncio.to_thread(self._deployer.failure)) is not None:
                    raise Unavailable(reason)
                if time.monotonic() > until_s:
                    timeout_s = config.ray.ready_timeout_s
                    raise Unavailable(f"not ready within {timeout_s:g} s (ray.ready_timeout_s)")
                await asyncio.sleep(_LOOK_S)
        except Exception:
            await asyncio.to_thread(self._deployer.begin, self.config)
            raise
        self.config = config


def following(running: TandemConfig, asked: TandemConfig) -> TandemConfig:
    """The configuration that takes over: clients, replicas and Ray are where they were."""
    router = replace(
        asked.router,
        host=running.router.host,
        http_port=running.router.http_port,
        grpc_port=running.router.grpc_port,
    )
    ray = replace(
        asked.ray,
        address=running.ray.address,
        dashboard_host=running.ray.dashboard_host,
        dashboard_port=running.ray.dashboard_port,
    )
    return replace(asked, directory=running.directory, router=router, ray=ray)


def there(config: TandemConfig, version: str, members: Iterable[ReplicaRecord]) -> bool:
    """Whether as many replicas of this version serve as it must have, and a router."""
    own = [record for record in members if record.config == version and not record.leaving]
    counts: dict[Pool, int] = {pool: sum(r.serves(pool) for r in own) for pool in get_args(Pool)}
    routed = any(record.role == "router" for record in own)
    return routed and all(counts[pool] >= n for pool, n in config.least_replicas.items())


async def _members(directory: Directory) -> list[ReplicaRecord]:
    try:
        return await directory.members()
    except Unavailable:
        return []  # looked at again, until the time is over


async def _tell(directory: Directory, state: RolloutState) -> bool:
    """Whoever asks a router hears of it; False where the directory could not be told."""
    try:
        await directory.set_rollout_state(state.to_json())
    except Unavailable as error:
        log.warning("the rollout's state could not be told", extra={"reason": error.message})
        return False
    return True


def document_of(config: TandemConfig) -> str:
    """A configuration as JSON, as a rollout is asked for; ConfigError where that cannot be."""
    try:
        return json.dumps(config.to_dict())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be sent: {error}") from None
