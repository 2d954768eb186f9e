"""Makes the parts of a router from the configuration and the model's files."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.api import ModelCard
from cluster.autoscaling.load_signals import LoadLimits
from cluster.autoscaling.runner import AutoscalingRunner, Wake
from cluster.config.request_log import TracingConfig
from cluster.config.schema import TandemConfig
from cluster.discovery.healthy_replicas import HealthyReplicas
from cluster.discovery.redis_directory import Directory
from cluster.journal.store import JournalStore, StreamLife
from cluster.parsing.selection import FormSelection
from cluster.placement.placement import Placement
from cluster.router.accounting import RequestAccounting
from cluster.router.canary.routing import CanaryRouting
from cluster.router.preprocessor import Preprocessor
from cluster.router.resumable.streams import Journal
from cluster.rpc.membership import Membership
from cluster.telemetry.labels import RequestLabels
from cluster.telemetry.request_log import RequestLog
from cluster.telemetry.requests.files import RowFiles
from cluster.telemetry.requests.prices import Prices
from cluster.telemetry.requests.store import RequestStore
from engine.kv.prefix_digest import Chain
from engine.model_description import ModelDescription, describe
from engine.text.tokenizer import Tokenizer
from engine.types.lane_quota import most_of

if TYPE_CHECKING:
    from cluster.telemetry.traces.request_tracer import RequestTracer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A router's part of the model: the description and the tokenizer, without weights."""

    description: ModelDescription
    tokenizer: Tokenizer

    @classmethod
    async def load(cls, config: TandemConfig) -> ServedModel:
        """Read both from the model's folder; raises a TandemError."""

        def read() -> ServedModel:
            description = describe(config.model)
            return cls(description, Tokenizer.load(str(description.folder)))

        return await asyncio.to_thread(read)


def new_placement(config: TandemConfig) -> Placement:
    """The policy that picks replicas, with nothing learned yet."""
    return Placement(
        config.local_prefill_tokens,
        overcommit=config.router.kv_overcommit,
        batch_slots=config.decode.batching == "continuous",
        batch_prompts=most_of(config.prefill.max_waiting, batch=True),
    )


def new_preprocessor(config: TandemConfig, model: ServedModel) -> Preprocessor:
    """The checks and the tokenizer that every request goes through first."""
    identity = model.description.identity

    def new_chain(tenant: str) -> Chain:
        return Chain(tenant, identity, config.kv.block_size)

    return Preprocessor(
        model_card(config, model.description),
        model.tokenizer,
        config.promised_endpoints,
        config.router.tokenizer_threads,
        new_chain if config.kv.prefix_cache else None,
        model.description.eos_ids,
        FormSelection(model.tokenizer, config.router.tool_parser, config.router.reasoning_parser),
    )


def new_accounting(
    config: TandemConfig, router: str, canaries: CanaryRouting, preprocessor: Preprocessor
) -> RequestAccounting:
    """The accounts of requests, with the labels and the request log of the configuration."""
    endpoints, default = config.endpoints, config.default_endpoint
    labels = RequestLabels(endpoints, default, config.tenants, config.router.metric_tenants)
    wanted = config.request_log
    store, prices = RequestStore(wanted.rows), Prices(wanted.prefill_price, wanted.decode_price)
    files = None
    if wanted.folder is not None:
        files = RowFiles(wanted, wanted.folder, router, store.get)
    return RequestAccounting(
        labels,
        canaries,
        preprocessor.endpoint_of,
        RequestLog(store, files, _new_tracer(config.tracing, router)),
        prices.cost_of if prices.known else None,
        preprocessor.text if wanted.texts else None,
    )


def _new_tracer(config: TracingConfig, router: str) -> RequestTracer | None:
    if config.otlp is None:
        return None
    # Only here: its import takes a good part of a router's start.
    from cluster.telemetry.traces.request_tracer import RequestTracer

    return RequestTracer.to_collector(config, router)


def new_journal(config: TandemConfig, router: str, model_identity: str) -> Journal | None:
    """The router's part of the journal; None for a directory without an address."""
    if config.directory.url is None:
        return None
    life = StreamLife(config.router.request_timeout_s, config.journal.keep_s)
    secret, tls = config.security.read_secret(), config.tls.redis
    store = JournalStore.connect(config.directory, secret, life, tls)
    return Journal(config.journal, store, router, model_identity, config.router.max_requests)


def new_autoscaling(
    config: TandemConfig,
    router: str,
    pools: HealthyReplicas,
    directory: Directory,
    wake: Wake | None,
) -> AutoscalingRunner:
    """What sizes the pools, on one router at a time. `wake` starts a pool that sleeps."""
    scaling, itl_s = config.scaling, config.decode.itl_budget_ms / 1000
    overcommit = config.router.kv_overcommit
    limits = LoadLimits(scaling.queue_s, scaling.in_use, itl_s, overcommit, scaling.batch)
    connector = Membership.of(config).connector()
    return AutoscalingRunner(scaling, limits, router, pools, directory, connector, wake)


def model_card(config: TandemConfig, description: ModelDescription) -> ModelCard:
    """The card of the model that clients see; the default endpoint comes first."""
    names = tuple(dict.fromkeys((config.default_endpoint, *config.endpoints)))
    return ModelCard(
        name=description.name,
        architecture=description.architecture,
        dtype=description.dtype,
        context_tokens=description.context_tokens,
        vocabulary=description.vocabulary,
        endpoints=names,
        created=int(time.time()),
        lanes=tuple(config.endpoints[name].lane for name in names),
    )
