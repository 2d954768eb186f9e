"""Why requests are refused: what each reason means, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusalReason:
    """`message` is what a refused client is told; the others are for the reference.

    `decided_by` names the part of the cluster that refuses. `retry` says what the retry time is.
    """

    message: str
    meaning: str
    decided_by: str
    retry: str
    remedy: str


_COMPUTED = "When the prompts before it are computed, as predicted; the time is kept for it."
_ENDED = "When a running request is predicted to end; the time is kept for it."
_OF_TENANT = "When a running request is predicted to end; no time is kept for it."
_ADMISSION = "the router's admission policy"
_FAIRNESS = "the router's fair shares between tenants"

REASONS: Mapping[str, RefusalReason] = {
    "ttft": RefusalReason(
        "the first token would be late",
        "The first token would come after `ttft_budget_ms`, or would make another request late.",
        _ADMISSION,
        _COMPUTED,
        "More prefill replicas, or a larger `ttft_budget_ms`.",
    ),
    "itl": RefusalReason(
        "the inter-token latency would be too long",
        "With one more stream the decode steps would be longer than `itl_budget_ms`.",
        _ADMISSION,
        _ENDED,
        "More decode replicas, or a larger `itl_budget_ms`.",
    ),
    "kv_blocks": RefusalReason(
        "the KV cache might have no capacity for its answer",
        "The longest answer of the request might find no KV blocks.",
        _ADMISSION,
        _ENDED,
        "A smaller `max_output_tokens`, more `kv.blocks` or decode replicas, or "
        "`router.kv_overcommit` above 1.",
    ),
    "decode_batch": RefusalReason(
        "the decode batch has no slot for it",
        "The stream would find no batch slot and stand still behind its first token.",
        _ADMISSION,
        _ENDED,
        "More decode replicas, or a larger `decode.max_batch`.",
    ),
    "batch_prompts": RefusalReason(
        "enough prompts of the batch lane wait already",
        "Prompts of the lane `batch` fill their part of the prefill queues. The request waits.",
        _ADMISSION,
        "Requests of the lane `batch` are not refused for it.",
        "More prefill replicas, or a larger `prefill.lanes.batch`.",
    ),
    "queue_full": RefusalReason(
        "the waiting queue is full",
        "`router.max_waiting` requests wait, and none of them has less of a right to its position.",
        "the router's waiting queue",
        _COMPUTED,
        "What helps the requests that wait, or a larger `router.max_waiting`.",
    ),
    "tenant_concurrent": RefusalReason(
        "this tenant has as many requests running as it may",
        "The tenant is at `max_concurrent`, or at this router's share of it.",
        _FAIRNESS,
        _OF_TENANT,
        "A larger `tenants.NAME.max_concurrent`.",
    ),
    "tenant_waiting": RefusalReason(
        "this tenant has as many prompt tokens waiting as it may",
        "The tenant is at `max_waiting_tokens`, or at this router's share of it.",
        _FAIRNESS,
        _OF_TENANT,
        "A larger `tenants.NAME.max_waiting_tokens`.",
    ),
    "tenant_kv": RefusalReason(
        "this tenant uses as much of the KV cache as it may",
        "The tenant is at `max_kv_tokens`, or at this router's share of it.",
        _FAIRNESS,
        _OF_TENANT,
        "A larger `tenants.NAME.max_kv_tokens`, or a smaller `max_output_tokens`.",
    ),
    "starting": RefusalReason(
        "a replica is being started",
        "The pool sleeps, and its start takes longer than the request may wait.",
        _ADMISSION,
        "The rest of the predicted start.",
        "`scaling.NAME.min: 1`, a larger `ttft_budget_ms`, or the lane `batch`.",
    ),
    "router_full": RefusalReason(
        "the most requests that there may be run here",
        "`router.max_requests` choices are in flight.",
        "the router, before admission",
        "By how long requests lately stayed, behind those refused before; no time is kept for it.",
        "More routers, or a larger `router.max_requests`.",
    ),
    "replica_full": RefusalReason(
        "the queue of a replica is full",
        "The replica's own queue is full: `prefill.max_waiting` or `decode.max_waiting`.",
        "a prefill or decode replica",
        "One second.",
        "More replicas.",
    ),
}
