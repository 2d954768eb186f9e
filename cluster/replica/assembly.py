"""The parts of a replica: its engine, both pools' loops, and both ends of the KV transfer.

`assemble` wires all of it and starts nothing. `cluster/replica/replica.py` starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cluster.config.schema import TandemConfig
from cluster.replica.device_defaults import LoopLimits, loop_limits
from cluster.rpc.server import Serve
from decode_pool.batch_size import BatchSize
from decode_pool.batching import make_batching
from decode_pool.itl_budget import ItlBudget
from decode_pool.loop import DecodeLoop
from decode_pool.scheduler import DecodeScheduler
from decode_pool.servicer import DecodeServicer
from engine.device import best_device
from engine.errors import UnsupportedModel
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.store import GrammarStore
from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import identity_of
from engine.memory.device_memory import refusing_out_of_memory
from engine.model_description import ModelDescription, describe
from engine.runtime.engine import Engine
from engine.runtime.engine_thread import EngineWorker, engine_thread
from engine.scheduling.prompt_order import PromptOrder
from engine.startup_timer import StartupTimer
from engine.text.completion import ChoiceText
from engine.text.tokenizer import Tokenizer
from engine.types.sequence import Sequence
from kv_transfer.config import TransferConfig, frame_bytes_for
from kv_transfer.links.shared import device_bytes_of_link
from kv_transfer.receiver import KvReceiver
from kv_transfer.sender import KvSender
from prefill_pool.loop import PrefillLoop
from prefill_pool.scheduler import PrefillScheduler
from prefill_pool.servicer import PrefillServicer
from protos.wire.client import Connector

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine with the tokenizer of its model, and the thread on which the engine computes.

    `grammars` compiles grammars; None where no answer of the model can follow a grammar. `limits`
    are those of the loops on the engine's device.
    """

    engine: Engine
    tokenizer: Tokenizer
    grammars: GrammarCompiler | None
    limits: LoopLimits
    thread: ThreadPoolExecutor

    @classmethod
    async def load(
        cls, config: TandemConfig, device_share: int, timer: StartupTimer
    ) -> LoadedModel:
        """Load the model of the configuration; raises a TandemError.

        `device_share` replicas share the memory of one device.
        """
        thread = engine_thread()
        loop = asyncio.get_running_loop()
        limits = loop_limits(config, best_device().type)
        log.info("limits: %s", limits.origins)
        loaded = await loop.run_in_executor(thread, _load, config, limits, device_share, timer)
        return cls(*loaded, limits, thread)

    def new_text(self, sequence: Sequence) -> ChoiceText:
        """The text of a sequence that begins behind its prompt."""
        description = self.engine.description
        return ChoiceText(
            self.tokenizer,
            sequence.tokens[: sequence.prompt_tokens],
            sequence.sampling,
            description.eos_ids,
            description.context_tokens,
            sequence.matcher,
        )


@dataclass(frozen=True, slots=True)
class PrefillParts:
    """The parts that compute prompts and hand their KV over."""

    scheduler: PrefillScheduler
    loop: PrefillLoop
    sender: KvSender


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """The parts that take KV over and generate."""

    scheduler: DecodeScheduler
    loop: DecodeLoop
    receiver: KvReceiver


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """All parts of a replica. Both loops share the blocks and the engine."""

    model: LoadedModel
    blocks: BlockPool
    worker: EngineWorker
    prefill: PrefillParts
    decode: DecodeParts

    def serves(self, config: TandemConfig) -> dict[str, Serve]:
        """The coroutine that serves one call, by the kind of the call."""
        new_text, lease_s = self.model.new_text, config.kv.lease_s
        timeout_s = config.router.request_timeout_s
        prepare = GrammarStore(self.model.grammars).prepare
        prefill = PrefillServicer(
            self.prefill.loop, self.prefill.sender, new_text, lease_s, prepare
        )
        decode = DecodeServicer(
            self.decode.loop, self.decode.receiver, new_text, timeout_s, prepare
        )
        return {"prefill": prefill.serve, "decode": decode.serve}

    def start_loops(self, replica_id: str) -> tuple[asyncio.Task[None], ...]:
        """Start both loops. The role decides which work comes, and the role may change."""

        def run(name: str, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            return asyncio.create_task(loop, name=f"{name} of {replica_id}")

        return (
            run("prefill loop", self.prefill.loop.run()),
            run("decode loop", self.decode.loop.run()),
        )


def assemble(
    config: TandemConfig, model: LoadedModel, replica_id: str, host: str, connector: Connector
) -> ReplicaParts:
    """Wire the parts of a replica whose servers listen on `host`; `connector` dials others."""
    blocks = BlockPool(model.engine.cache.blocks)
    worker = EngineWorker(model.engine, model.thread, config.model.step_timeout_s)
    limits = model.limits

    def order() -> PromptOrder:
        lanes, shared_cores = config.prefill.lanes, worker.shared_cores
        return PromptOrder(limits.chunk_tokens, lanes, shared_cores=shared_cores)

    prefill = _new_prefill_scheduler(config, model, blocks, order())
    decode = _new_decode_scheduler(config, model, blocks, order())
    prefill_loop = PrefillLoop(prefill, worker)
    decode_loop = _new_decode_loop(config, limits, decode, worker)
    # One loop may wait for blocks that the other loop frees.
    prefill_loop.wakeup.join(decode_loop.wakeup)
    decode_loop.pass_ends = prefill_loop.pass_ends
    cache = model.engine.cache
    transfer = transfer_config(config, cache.device.type)
    return ReplicaParts(
        model,
        blocks,
        worker,
        PrefillParts(prefill, prefill_loop, KvSender(replica_id, host, cache, transfer)),
        DecodeParts(decode, decode_loop, KvReceiver(replica_id, host, cache, transfer, connector)),
    )


def _new_prefill_scheduler(
    config: TandemConfig, model: LoadedModel, blocks: BlockPool, order: PromptOrder
) -> PrefillScheduler:
    return PrefillScheduler(
        blocks,
        order,
        block_size=config.kv.block_size,
        max_waiting=config.prefill.max_waiting,
        parked_fraction=config.kv.parked_fraction,
        identity=_cache_identity(config, model.engine),
    )


def _new_decode_scheduler(
    config: TandemConfig, model: LoadedModel, blocks: BlockPool, order: PromptOrder
) -> DecodeScheduler:
    decode, limits = config.decode, model.limits
    return DecodeScheduler(
        blocks,
        order,
        BatchSize(limits.max_batch, decode.itl_budget_ms / 1000),
        block_size=config.kv.block_size,
        max_waiting=decode.max_waiting,
        chunk_tokens=limits.chunk_tokens,
        identity=_cache_identity(config, model.engine),
        batching=make_batching(decode.batching, decode.window_ms / 1000),
    )


def _new_decode_loop(
    config: TandemConfig, limits: LoopLimits, scheduler: DecodeScheduler, worker: EngineWorker
) -> DecodeLoop:
    decode = config.decode
    budget = ItlBudget(decode.itl_budget_ms / 1000, limits.itl_factor)
    most_jobs = limits.max_batch + decode.max_waiting
    return DecodeLoop(scheduler, worker, most_jobs, budget, mixes=limits.mixed_passes)


def _cache_identity(config: TandemConfig, engine: Engine) -> str | None:
    """The prefix of the digests of cached blocks; None where there is no prefix cache."""
    return identity_of(engine.cache.layout) if config.kv.prefix_cache else None


def transfer_config(config: TandemConfig, device: str) -> TransferConfig:
    """The settings of the links of a replica whose KV is on that kind of device.

    On a GPU each link takes memory, so there are at most twice as many as other replicas.
    """
    kv, peers = config.kv, _most_peers(config)
    bound = {"max_links": max(2, 2 * peers)} if device == "cuda" else {}
    return TransferConfig(
        kv.transport,
        frame_bytes_for(device),
        join_timeout_s=kv.join_timeout_s,
        silence_s=kv.silence_s,
        **bound,
    )


def _most_peers(config: TandemConfig) -> int:
    """The most replicas that a replica has links with; it may change its role."""
    most = config.most_replicas
    return max(most.values()) if all(most.values()) else 0


def link_bytes(config: TandemConfig, device: str) -> int:
    """The memory of a GPU that the links of a replica will take."""
    if device != "cuda":
        return 0
    return _most_peers(config) * device_bytes_of_link(transfer_config(config, device))


def _load(
    config: TandemConfig, limits: LoopLimits, device_share: int, timer: StartupTimer
) -> tuple[Engine, Tokenizer, GrammarCompiler | None]:
    """The engine, the tokenizer and its compiler; blocks for as long as loading takes."""
    timer.begin("tokenizer")
    description = describe(config.model)
    tokenizer = Tokenizer.load(str(description.folder))
    # Not with the first grammar: it holds Python's lock for up to a second.
    grammars = _compiler(tokenizer, description)
    device = best_device()
    with refusing_out_of_memory(device, description.name):
        engine = Engine.load(
            description,
            config.kv,
            config.model,
            device=device,
            most_tokens=limits.max_batch * description.context_tokens,
            most_rows=limits.max_batch,
            share=device_share,
            link_bytes=link_bytes(config, device.type),
            timer=timer,
        )
    return engine, tokenizer, grammars


def _compiler(tokenizer: Tokenizer, description: ModelDescription) -> GrammarCompiler | None:
    try:
        return GrammarCompiler(tokenizer.serialized(), description.vocabulary, description.eos_ids)
    except UnsupportedModel as error:
        log.info("no structured answers: %s", error.message)
        return None
