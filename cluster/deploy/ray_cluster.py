"""The launcher's side of Ray: start or join a cluster, deploy, wait until all is up, leave."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from cluster.chart.grafana_install import place_dashboard
from cluster.config.schema import TandemConfig
from cluster.deploy.local_ray.gcs_server import GcsServer
from cluster.deploy.local_ray.raylet import Raylet
from cluster.deploy.replica_warnings import ReplicaWarnings
from cluster.deploy.serve_app import APPLICATION, QUIET, build, share_of_cluster
from cluster.deploy.startup_progress import DeploymentState, StartupProgress, failure_reason
from cluster.deploy.timed_call import timed
from engine.errors import Unavailable

logger = logging.getLogger(__name__)

_STATUS_INTERVAL_S = 0.2
_OBJECT_STORE_BYTES = 128 * 1024 * 1024  # nothing of ours travels through Ray's object store
# Bound: what Serve takes to end an application beyond the drains.
_END_S = 15.0
# Bound: what Serve's controller takes to answer.
_ANSWER_S = 60.0
R = TypeVar("R")


class RayCluster:
    """Ray and the application on it; local unless `ray.address` says otherwise.

    Its routers obey the operator whose key has the hash `operator_digest`.
    """

    def __init__(
        self, config: TandemConfig, progress: StartupProgress, operator_digest: str | None = None
    ) -> None:
        self._config = config
        self._operator_digest = operator_digest
        self._progress = progress
        self._local = config.ray.address is None
        self._session: Path | None = None
        self._gcs: GcsServer | None = None
        self._raylet: Raylet | None = None
        self._warnings: ReplicaWarnings | None = None

    @property
    def session(self) -> Path | None:
        """The folder of the local Ray's session, with its logs; None before it is made."""
        return self._session if self._local else None

    def start(self) -> None:
        """Start Ray, or join it."""
        # Ray adds many lines of its own. Without TANDEM_LOG warnings are enough.
        forwards = "TANDEM_LOG" in os.environ
        # Ray writes its token and its sessions with the mode that this leaves.
        with _failing("Ray did not start"), _private_files(self._local):
            context = ray.init(
                address=self._config.ray.address or "local",
                log_to_driver=forwards,
                logging_level=logging.ERROR,
                **(self._local_options() if self._local else {}),
            )
        self._session = Path(context.address_info["session_dir"])
        if not forwards:
            self._warnings = ReplicaWarnings(self._session / "logs")
            self._warnings.start()
        if self._local:
            _keep_token_private()
            self._gcs = GcsServer.find(ray.get_runtime_context().gcs_address)
            self._raylet = Raylet.find()

    def start_serve(self) -> None:
        """Start Serve on it, without its proxies."""
        with _failing("Serve did not start"), _quiet():
            self._answered(lambda: serve.start(proxy_location="Disabled", logging_config=QUIET))

    def deploy(self) -> None:
        """Deploy and wait until every replica is up; Unavailable says why one is not."""
        self.begin(self._config)
        deadline = time.monotonic() + self._config.ray.ready_timeout_s
        while True:
            # Before the first status is read: an earlier application may have failed, and its
            # status stands until Serve's controller has seen the new one.
            time.sleep(_STATUS_INTERVAL_S)
            self.keep()
            if self._all_up():
                break
            if time.monotonic() > deadline:
                raise Unavailable(self._late())
        if self._local and self._session is not None:
            # Ray makes the folder anew some time after it has started.
            place_dashboard(self._session)

    def begin(self, config: TandemConfig) -> None:
        """Have Serve replace the running configuration by this one, and return at once."""
        share = share_of_cluster(config)
        if hint := gpu_hint(config, int(ray.cluster_resources().get("GPU", 0))):
            self._progress.say(hint)
        application = build(config, share, self._operator_digest)
        target = serve.RunTarget(application, name=APPLICATION, route_prefix=None)
        with _failing("Serve did not deploy"), _quiet():
            self._answered(
                lambda: serve.run_many(
                    [target],
                    wait_for_ingress_deployment_creation=False,
                    wait_for_applications_running=False,
                )
            )
        self._config = config

    def failure(self) -> str | None:
        """Why the last deployment will not come up; None while it may. Raises Unavailable."""
        return _failure(*self._read())

    def keep(self) -> None:
        """Start the GCS of a local Ray anew if it died; raises Unavailable where that is in vain.

        It is in vain without the raylet, too. Call it often, from the main thread.
        """
        if self._raylet is not None:
            self._raylet.check()
        if self._gcs is not None:
            self._gcs.keep()

    def stop(self) -> None:
        """Drain and end the application, and Ray where it was started here. Idempotent."""
        if not ray.is_initialized():
            return
        try:
            with contextlib.suppress(Exception), _quiet():
                self._delete()
        finally:
            ray.shutdown()
            if self._gcs is not None:
                self._gcs.stop()
            if self._warnings is not None:
                self._warnings.stop()

    def _delete(self) -> None:
        """End the application, and wait for it. Serve itself would wait for no more than 60 s."""
        self.keep()
        timed(_end_application, self._config.ray.drain_s + _END_S, self.keep)

    def _answered(self, call: Callable[[], R]) -> R:
        """The answer of Serve's controller; raises TimeoutError where it is late.

        A rollout asks from another thread than the main one, which calls `keep` then.
        """
        starting = threading.current_thread() is threading.main_thread()
        return timed(call, _ANSWER_S, self.keep if starting else None)

    def _all_up(self) -> bool:
        """Report the running replicas; returns whether all run. Raises Unavailable on a failure."""
        application, states = self._read()
        self._progress.replicas(states)
        if why := _failure(application, states):
            raise Unavailable(why)
        return application is not None and application.status == ApplicationStatus.RUNNING

    def _late(self) -> str:
        """The message of a deployment that was not ready in time."""
        states = self._read()[1]
        late = [f"{name} {s.message}".strip() for name, s in states.items() if not s.complete]
        timeout_s = self._config.ray.ready_timeout_s
        return f"not ready within {timeout_s:g} s (ray.ready_timeout_s): " + (
            "; ".join(failure_reason(line) or line for line in late) or "serve"
        )

    def _read(self) -> tuple[ApplicationStatusOverview | None, Mapping[str, DeploymentState]]:
        """The application and its deployments, as Serve has them."""
        with _failing("Serve does not answer"):
            application = self._answered(serve.status).applications.get(APPLICATION)
        deployments = application.deployments if application else {}
        wanted = {
            "prefill": self._config.prefill.replicas,
            "decode": self._config.decode.replicas,
            "router": self._config.router.replicas,
        }
        states = {
            name: _state(name, count, deployments[name])
            for name, count in wanted.items()
            if name in deployments
        }
        return application, states

    def _local_options(self) -> dict[str, Any]:
        return {
            "include_dashboard": True,
            "dashboard_host": self._config.ray.dashboard_host,
            "dashboard_port": self._config.ray.dashboard_port,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }


def _end_application() -> None:
    """Have Serve end the application, and wait for that."""
    with contextlib.suppress(Exception):
        serve.delete(APPLICATION, _blocking=False)
        while APPLICATION in serve.status().applications:
            time.sleep(_STATUS_INTERVAL_S)


def gpu_hint(config: TandemConfig, gpus: int) -> str | None:
    """A hint for an operator of two pools on so many GPUs; None where there is none."""
    if not (gpus and config.prefill.replicas):
        return None
    if gpus == 1:
        return "two pools share one GPU in time; one pool, --prefill-replicas 0, serves more there"
    return _unverified_transport(config.kv.transport)


def _unverified_transport(configured: str) -> str | None:
    # Imported here because the transports load torch.
    from kv_transfer.transports.registry import TRANSPORTS
    from kv_transfer.transports.selection import unverified

    if not (names := unverified(configured)):
        return None
    general = list(TRANSPORTS)[-1]
    return f"{names[0]} between two GPUs is unverified; `kv.transport: {general}` is not"


def _failure(
    application: ApplicationStatusOverview | None, states: Mapping[str, DeploymentState]
) -> str | None:
    if application is None:
        return "the application is gone"
    for state in states.values():
        if state.failure:
            return state.failure
    hopeless = application.status == ApplicationStatus.DEPLOY_FAILED
    return failure_reason(application.message) if hopeless else None


def _state(name: str, wanted: int, seen: Any) -> DeploymentState:
    return DeploymentState(
        name=name,
        wanted=wanted,
        running=seen.replica_states.get("RUNNING", 0),
        status=str(seen.status.value),
        message=seen.message,
    )


def _keep_token_private() -> None:
    """Make Ray's token file private: anyone with the token may run code on the cluster."""
    token = Path.home() / ".ray" / "auth_token"
    try:
        token.chmod(0o600)
    except FileNotFoundError:
        pass  # the environment has the token, or the path of its file
    except OSError as error:
        logger.warning("others may be able to read %s: %s", token, error)


@contextlib.contextmanager
def _private_files(private: bool) -> Iterator[None]:
    """Let nobody else read the files that are made, also those of processes that are started."""
    before = os.umask(0o077) if private else None
    try:
        yield
    finally:
        if before is not None:
            os.umask(before)


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Unavailable(
            f"{what}: {failure_reason(str(error)) or type(error).__name__}"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Serve's client, which logs each step at info to a handler of its own."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
