"""A router as its console shows it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cluster.config.schema import TandemConfig
from cluster.config.version import config_version
from cluster.console.peer_news import PeersTold
from cluster.console.source import Json, RunningView
from cluster.discovery.rollout import RolloutState
from cluster.replica_record import ReplicaRecord
from cluster.router.accounting import RequestAccount
from cluster.router.canary.routing import CanaryState
from cluster.router.console.parts import KnownCluster, OwnRouter
from cluster.router.console.replica_speed import speeds
from cluster.telemetry.requests.row_clock import EPOCH_S

_LOAD = (
    *("waiting", "running", "streams", "batch_limit", "prompt_tokens_due"),
    *("queued_prefill_s", "stalled"),
)
_BLOCKS = ("total", "free", "cached", "leased", "quarantined", "orphaned", "promised")
_TENANTS_SHOWN = 64


class RouterView:
    """Reads the parts of a router; implements `cluster.console.source.ModelSource`."""

    def __init__(self, own: OwnRouter, cluster: KnownCluster) -> None:
        self.name = own.name
        self.rows = own.rows
        self._config = own.config
        self._router = own.router
        self._exchange = own.exchange
        self._cluster = cluster
        self._settings = self._settings_of(own.config)

    def running(self) -> list[RunningView]:
        """The requests that run in this router."""
        return [_running(one.account) for one in self._router.in_flight]

    def peers(self) -> PeersTold:
        """Nothing: this view is of one router alone."""
        return PeersTold()

    def shares(self) -> Json:
        """What each tenant uses of its caps in this router."""
        return self._exchange.fairness.shown(self._config.tenants)

    def state(self) -> Json:
        """Replicas, tenants, canaries, and the settings that the page needs."""
        replicas = [self._cluster.latest(one) for one in self._cluster.pools.members()]
        known = speeds(replicas, self._cluster.placement.costs)
        return {
            "replicas": {one.id: self._replica(one) | asdict(known[one.id]) for one in replicas},
            "missing": list(self._router.missing()),
            "tenants": most_served(self.shares()),
            "canaries": [_canary(one) for one in self._exchange.canaries.states()],
            "settings": self._settings,
        }

    async def cluster(self) -> Json:
        """The last rollout, whether a `tandem serve` listens, what starts; raises Unavailable."""
        directory = self._cluster.directory
        text, launcher = await directory.rollout_state(), await directory.launcher()
        rollout = None
        if text:
            try:
                rollout = asdict(RolloutState.from_json(text))
            except ValueError:
                rollout = None
        starting = [one.shown for one in await directory.starting.unfinished()]
        return {"rollout": rollout, "launched": launcher is not None, "starting": starting}

    def configuration(self) -> Json:
        """The whole configuration, less the address of Redis, secrets, and texts."""
        shown = self._config.to_dict()
        shown["directory"]["url"] = None
        shown["security"] = {}
        shown["kv"]["warm_prefixes"] = f"{len(self._config.kv.warm_prefixes)} texts"
        return {"version": config_version(self._config), "configuration": shown}

    def _settings_of(self, config: TandemConfig) -> Json:
        budgets = {
            name: {
                "lane": one.lane,
                "ttft_s": one.ttft_budget_s if one.lane != "batch" else None,
                "itl_s": one.itl_budget_s,
                "guard": asdict(one.canary.guard) if one.canary else None,
            }
            for name, one in config.endpoints.items()
        }
        return {
            "version": config_version(config),
            "model": self._router.model.name,
            "endpoints": budgets,
            "keys": config.router.api_keys is not None,
            "local_prefill_tokens": config.local_prefill_tokens,
            "least_replicas": dict(config.least_replicas),
        }

    def _replica(self, record: ReplicaRecord) -> Json:
        load = record.load
        found: Json = {name: getattr(load, name) for name in _LOAD}
        blocks = {name: getattr(load, f"blocks_{name}") for name in _BLOCKS}
        blocks["running"] = max(0, load.blocks_used - load.blocks_leased - load.blocks_quarantined)
        # The slots that admission counts as taken, before the replica hears of the request.
        requests = self._cluster.placement.load_tracker.requests(record)
        promised = max(0, requests - load.streams) if record.serves("decode") else 0
        health = "ok" if self._cluster.pools.trusted(record) else "lost"
        return found | {
            "role": record.role,
            "home": record.home or record.role,
            "health": "leaving" if record.leaving else health,
            "config": record.config,
            "promised": promised,
            "started_at": round(record.started_at, 1),
            "blocks": blocks,
        }


def most_served(tenants: Json) -> Json:
    """The tenants that were served most, as many as are shown."""
    most = sorted(tenants.items(), key=lambda item: -item[1]["served"])[:_TENANTS_SHOWN]
    return dict(most)


def _running(account: RequestAccount) -> RunningView:
    account.wait.look()
    streams = account.streams
    first = streams[0] if streams else None
    moved = []
    for stream in streams:
        times = stream.times
        if times.committed_s is not None and times.transfer_bytes:
            moved.append((times.prefilled_by, stream.pair.decode.id, times.transfer_bytes))
    return RunningView(
        account.request_id,
        account.tenant,
        account.route.endpoint,
        account.labels["lane"],
        account.began_s + EPOCH_S,
        account.ttft_s,
        sum(stream.count for stream in streams),
        None if account.prompt_ids is None else len(account.prompt_ids),
        account.wait.reason,
        "" if first is None else first.times.prefilled_by or first.pair.prefill.id,
        "" if first is None else first.pair.decode.id,
        None if first is None or account.ttft_s is None else first.row,
        tuple(moved),
        tuple(stream.token_times for stream in streams),
    )


def _canary(state: CanaryState) -> dict[str, Any]:
    return asdict(state)
