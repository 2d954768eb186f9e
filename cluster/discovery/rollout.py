"""A rollout: another model or configuration takes over from the running one. No Ray here.

    asked → starting → serving | failed

The replicas of the new configuration start beside the old ones. Once all of them serve, Serve ends
the old ones, which finish what they have begun (`cluster/discovery/version_handover.py`). If the
new ones do not come up, the old ones go on. The old configuration is then deployed again, so that
Serve keeps that one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Literal, Protocol, get_args

from cluster.config.schema import TandemConfig, parse_config
from cluster.config.version import config_version
from cluster.config.weakenings import restart_notices, weakenings
from cluster.discovery.heartbeat import WATCH_INTERVAL_S
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from cluster.discovery.version_handover import there
from cluster.replica_record import ReplicaRecord
from engine.errors import ConfigError, InvalidRequest, TandemError, Unavailable
from engine.rare_log import RareLog

log = logging.getLogger(__name__)

State = Literal["asked", "starting", "serving", "failed"]
UNDER_WAY: tuple[State, ...] = ("asked", "starting")
NOT_OF_THIS_RUN = (
    "no router of this run requested it within the last hour; the clocks of the hosts may differ"
)
# Bound: rollouts whose ids a launcher remembers; a person asks for each.
_MOST_REMEMBERED = 10_000
# Bound: refused requests are logged so often at most.
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request to the launcher by an operator; `configuration` is all of it, as JSON.

    `weaken_security` is the operator's word that the configuration may protect less. A `restart`
    is of the running configuration. The seal shows that a member of the cluster made the request.
    """

    id: str
    configuration: str
    operator: str = ""
    weaken_security: bool = False
    restart: bool = False
    seal: str = ""

    def sealed(self, by: RequestSeal) -> RolloutRequest:
        """The request with its seal."""
        return replace(self, seal=by.of_rollout(self._content()))

    def is_sealed(self, by: RequestSeal) -> bool:
        """Whether a member of the cluster made this request."""
        return by.is_rollout(self.seal, self._content())

    def _content(self) -> str:
        """Everything but the seal, as it is sealed."""
        return replace(self, seal="").to_json()

    def to_json(self) -> str:
        """The request as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RolloutRequest:
        """Read a request; raises ValueError if the text is not one."""
        try:
            data = json.loads(text)
            return cls(
                str(data["id"]),
                str(data["configuration"]),
                str(data.get("operator", "")),
                data.get("weaken_security") is True,
                data.get("restart") is True,
                str(data.get("seal", "")),
            )
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a request for a rollout: {error}") from None


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The state of a rollout: `version` is the new configuration's, `reason` is of a failure."""

    id: str
    version: str = ""
    state: State = "asked"
    reason: str = ""

    def to_json(self) -> str:
        """The state as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RolloutState:
        """Read a state; raises ValueError if the text is not one."""
        try:
            state = cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not a rollout's state: {error}") from None
        if not all(isinstance(part, str) for part in astuple(state)):
            raise ValueError("not a rollout's state: a part is no text")
        if state.state not in get_args(State):
            raise ValueError(f"not a rollout's state: {state.state!r}")
        return state


class Deployer(Protocol):
    """Puts a configuration on the cluster, as `RayCluster` does."""

    def begin(self, config: TandemConfig) -> None:
        """Start its replicas beside the running ones. Raises Unavailable."""
        ...

    def failure(self) -> str | None:
        """Why the replicas will not come up; None while they may. Raises Unavailable."""
        ...


class Rollouts:
    """Carries out the requested rollouts one after the other. `config` is what runs."""

    def __init__(
        self,
        config: TandemConfig,
        deployer: Deployer,
        prepare: Callable[[TandemConfig], TandemConfig],
        print_line: Callable[[str], None],
        seal: RequestSeal,
    ) -> None:
        self.config = config
        self._seal = seal
        # A request that was read from Redis and written there again is not carried out twice.
        self._done: deque[str] = deque(maxlen=_MOST_REMEMBERED)
        self._deployer = deployer
        self._prepare = prepare
        self._print_line = print_line
        self._unpublished: RolloutState | None = None
        self._refused = RareLog(log, "requested rollouts are refused", _LOG_EVERY_S)

    async def poll(self, directory: Directory) -> None:
        """Carry out a rollout if one was requested; returns when it serves or has failed.

        Raises Unavailable if the directory cannot be read, or cannot store how the last one ended.
        """
        if self._unpublished is not None:
            await directory.set_rollout_state(self._unpublished.to_json())
            self._unpublished = None
        text = await directory.take_rollout()
        if text is None:
            return
        try:
            request = RolloutRequest.from_json(text)
            sealed = request.is_sealed(self._seal) and request.id not in self._done
        except ValueError:
            self._refused.note({"reason": "no request"})
            return
        if not sealed:
            self._refused.note({"reason": NOT_OF_THIS_RUN})
            await _publish(directory, RolloutState(request.id, "", "failed", NOT_OF_THIS_RUN))
            return
        state = await self._carry_out(request, directory)
        what = f"rollout {state.version}".rstrip()  # a refused rollout has no version
        self._print_line(f"{what}: {state.state} {state.reason}".rstrip())
        # Until the directory knows that this rollout is over, no other can be requested.
        self._unpublished = None if await _publish(directory, state) else state

    async def _carry_out(self, request: RolloutRequest, directory: Directory) -> RolloutState:
        state = RolloutState(request.id)
        self._done.append(request.id)
        await _publish(directory, state)  # this state does not expire
        try:
            requested = requested_config(request, self.config)
            config = next_config(self.config, requested)
            # Checked here too, because another router may run another configuration.
            refuse_weakening(weakened := weakenings(self.config, config), request)
            for line in weakened:
                self._print_line(f"rollout by {request.operator} weakens {line}")
            for line in restart_notices(self.config, requested):
                self._print_line(f"rollout by {request.operator}: {line}")
            config = await asyncio.to_thread(self._prepare, config)
            state = replace(state, version=config_version(config), state="starting")
            await _publish(directory, state)
            # Equal sections may still differ in which endpoint is the default one.
            same = config == self.config and state.version == config_version(self.config)
            if request.restart or not same:
                await self._replace(config, state.version, directory)
            return replace(state, state="serving")
        except (TandemError, ValueError) as error:
            reason = error.message if isinstance(error, TandemError) else str(error)
        except Exception as error:
            log.exception("a rollout ended in a fault")
            reason = f"internal error: {type(error).__name__}"
        return replace(state, state="failed", reason=reason)

    async def _replace(self, config: TandemConfig, version: str, directory: Directory) -> None:
        self._print_line(f"rollout {version}: starting")
        until_s = time.monotonic() + config.ray.ready_timeout_s
        old = {record.id for record in await directory.members()}
        try:
            await asyncio.to_thread(self._deployer.begin, config)
            while not there(config, version, await _joined(directory, old)):
                if (reason := await asyncio.to_thread(self._deployer.failure)) is not None:
                    raise Unavailable(reason)
                if time.monotonic() > until_s:
                    timeout_s = config.ray.ready_timeout_s
                    raise Unavailable(f"not ready within {timeout_s:g} s (ray.ready_timeout_s)")
                await asyncio.sleep(WATCH_INTERVAL_S)
        except Exception:
            await asyncio.to_thread(self._deployer.begin, self.config)
            raise
        self.config = config


def requested_config(request: RolloutRequest, running: TandemConfig) -> TandemConfig:
    """The configuration of a request; raises InvalidRequest."""
    if request.restart:
        return running
    try:
        return parse_config(json.loads(request.configuration))
    except ConfigError as error:
        raise InvalidRequest(error.message, field="configuration") from None
    except ValueError:
        raise InvalidRequest("configuration is no JSON", field="configuration") from None


def refuse_weakening(weakened: Sequence[str], request: RolloutRequest) -> None:
    """Raise InvalidRequest where a request weakens security and does not say so."""
    if weakened and not request.weaken_security:
        raise InvalidRequest(
            f"this rollout weakens security ({'; '.join(weakened)}); say so: --weaken-security",
            field="weaken_security",
        )


def next_config(running: TandemConfig, requested: TandemConfig) -> TandemConfig:
    """The requested configuration, with the addresses, the secret and TLS of the running one."""
    router = replace(
        requested.router,
        host=running.router.host,
        http_port=running.router.http_port,
        grpc_port=running.router.grpc_port,
    )
    ray = replace(
        requested.ray,
        address=running.ray.address,
        dashboard_host=running.ray.dashboard_host,
        dashboard_port=running.ray.dashboard_port,
    )
    return replace(
        requested,
        directory=running.directory,
        router=router,
        ray=ray,
        security=running.security,
        tls=running.tls,
    )


async def _joined(directory: Directory, old: Collection[str]) -> list[ReplicaRecord]:
    """The members that are not of the ids `old`."""
    try:
        return [record for record in await directory.members() if record.id not in old]
    except Unavailable:
        return []  # read again, until the time is over


async def _publish(directory: Directory, state: RolloutState) -> bool:
    """Store the state for the routers; False if the directory could not be reached."""
    try:
        await directory.set_rollout_state(state.to_json())
    except Unavailable as error:
        log.warning("the rollout's state could not be published", extra={"reason": error.message})
        return False
    return True


def document_of(config: TandemConfig) -> str:
    """A configuration as JSON, for a rollout; raises ConfigError if that cannot be."""
    try:
        return json.dumps(config.to_dict())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be sent: {error}") from None
