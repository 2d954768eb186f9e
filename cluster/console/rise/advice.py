"""Says what to do about the cause of a rise of TTFT, and which page says more. Pure.

`docs/howto/` and the remedies of `cluster/admission/refusal_reasons.py` say the same at length.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.admission.refusal_reasons import REASONS
from cluster.console.rise.cause import RiseCause

_ALERTS = "docs/howto/answer-an-alert.md"
_SLOW_TOKENS = f"{_ALERTS}#tandemfirsttokensnearbudget-tandemfirsttokenslate"
_QUEUE = f"{_ALERTS}#tandemqueuewaitrising"
_LATE_ROUTER = f"{_ALERTS}#tandemarrivinglate"
_OTHER_WORK = f"{_ALERTS}#tandempredictionoff"
_BLOCKS = f"{_ALERTS}#tandemblocksnearlygone"
_FLAPPING = f"{_ALERTS}#tandemreplicaflapping"
_RESTART = "docs/howto/drain-and-restart.md"
_TENANTS = "docs/howto/api-keys-and-tenants.md"
_SLEEP = "docs/howto/scale-to-zero.md"
_ROLLOUT = "docs/howto/roll-out-a-version.md"
# The tenant of all clients without a key, whose section bounds every tenant without one.
_KEYLESS = "default"
# The cap of a tenant that helps where requests wait for decode; else it is `max_concurrent`.
_CAPS = {"kv_blocks": "max_kv_tokens", "tenant_kv": "max_kv_tokens"}
_PAGES = {"kv_blocks": _BLOCKS, "starting": _SLEEP, "ttft": _QUEUE, "batch_prompts": _QUEUE}


@dataclass(frozen=True, slots=True)
class RiseAdvice:
    """What to do, and the page for it as an alert's `runbook` has it."""

    text: str
    runbook: str


def advice_of(cause: RiseCause, *, longer_prompts: bool) -> RiseAdvice:
    """The advice for a cause."""
    if cause.replica:
        return _of_replica(cause)
    if cause.capped:
        cap = f"`tenants.{cause.capped}.{_CAPS.get(cause.reason, 'max_concurrent')}`"
        text = f"If {cause.capped} may have more, raise {cap}. No other tenant waits for it."
        return RiseAdvice(text, _TENANTS)
    if cause.reason in REASONS:
        remedy = REASONS[cause.reason].remedy
        return _with_cap(cause, remedy, _PAGES.get(cause.reason, _SLOW_TOKENS))
    if cause.fresh:
        text = (
            "New replicas are slow while they warm up. If it stays, roll back to the old version."
        )
        return RiseAdvice(text, _ROLLOUT)
    return _of_stage(cause, longer_prompts)


def _of_replica(cause: RiseCause) -> RiseAdvice:
    if cause.lost:
        text = (
            f"The end of the log of {cause.replica} says why it was lost; look at the memory of "
            "its host. `tandem status` shows whether another replica took its place."
        )
        return RiseAdvice(text, _FLAPPING)
    text = (
        f"See what else runs on the host of {cause.replica}. Drain the replica on its card in the "
        "console, replace all replicas by `tandem restart`, or drain its node on Kubernetes."
    )
    return RiseAdvice(text, _RESTART)


def _of_stage(cause: RiseCause, longer_prompts: bool) -> RiseAdvice:
    first = cause.stages[0] if cause.stages else ""
    if first == "failover":
        text = "`tandem status` shows lost replicas, and the end of the log of each says why."
        return RiseAdvice(text, _FLAPPING)
    if first in ("admission", "first_flush"):
        text = "Give routers a core of their own, or add routers (`router.replicas`)."
        return RiseAdvice(text, _LATE_ROUTER)
    if first == "prefill" and not (cause.tenant or longer_prompts):
        text = (
            f"Look at the hosts of the {cause.pool} replicas with `tandem doctor`: other processes "
            "may share their cores or GPUs."
        )
        return RiseAdvice(text, _OTHER_WORK)
    pool = cause.pool if cause.pool == "decode" else "prefill"
    more = f"More {pool} replicas (`{pool}.replicas`, or `scaling.{pool}.max`)."
    return _with_cap(cause, more, _QUEUE)


def _with_cap(cause: RiseCause, remedy: str, runbook: str) -> RiseAdvice:
    """The remedy, and before it the cap of the tenant that sent more."""
    remedy = f"{remedy[0].lower()}{remedy[1:]}"
    if not cause.tenant:
        return RiseAdvice(f"What helps: {remedy}", runbook)
    if cause.tenant == _KEYLESS:
        text = f"Give clients keys, so that each tenant can have a cap. What else helps: {remedy}"
        return RiseAdvice(text, _TENANTS)
    cap = f"`tenants.{cause.tenant}.{_CAPS.get(cause.reason, 'max_concurrent')}`"
    return RiseAdvice(f"Cap {cause.tenant} by {cap}. What else helps: {remedy}", runbook)
