"""The console's words, which terminals share: names, and one request in words.

A request's words say what it waited for, and behind whom.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.admission.refusal_reasons import REASONS
from cluster.console.time_series import WINDOW_S
from cluster.display_text import exact_time, long_time, plain

# The shortest wait that gets a sentence.
_LEAST_S = 1e-3
# The shortest time in the router outside its queue that gets a sentence.
_LEAST_OUTSIDE_S = 1e-2
# The shortest time that is not written as zero.
_SHOWN_S = 5e-5
# What offered KV waited for (`decode_pool/entry.py`), and for how long behind which requests.
_AT_DECODE = {
    "blocks": "{decode} had too few free KV blocks for it for {time}{behind}.",
    "slots": "{decode} had no free slot in its batch for {time}{behind}.",
    "earlier": "At {decode} requests before it found no room for {time}{behind}.",
    "batch": "It waited {time} for the next batch of {decode} to form.",
    "nothing": "{decode} had room for its KV at once, and asked for it after {time}.",
}
_ON_OFFER = "Its KV was on offer to {decode} for {time}."
Row = dict[str, Any]

# The stages of a choice, in their order.
STAGE_NAMES: Mapping[str, str] = {
    "admission": "router wait",
    "failover": "failover",
    "prefill_queue": "prefill queue",
    "prefill": "prefill",
    "first_flush": "first flush",
    "offer": "offer of KV",
    "decode_admission": "decode admission",
    "transfer": "transfer",
    "decode": "decode",
    "last_flush": "last flush",
}
# The reasons of waits and refusals, short enough for a table.
REASON_NAMES: Mapping[str, str] = {
    "ttft": "the first token would be late",
    "itl": "ITL would be too long",
    "kv_blocks": "KV blocks are short",
    "decode_batch": "the slots of the decode batch are taken or promised",
    "batch_prompts": "enough prompts of the batch lane wait",
    "queue_full": "the router's queue is full",
    "tenant_concurrent": "the tenant runs as many as it may",
    "tenant_waiting": "the tenant waits with as much as it may",
    "tenant_kv": "the tenant has as much KV as it may",
    "starting": "a replica starts",
    "router_full": "the router is full",
    "replica_full": "a replica's queue is full",
}
NO_RISE = f"TTFT did not rise at any endpoint in the last {long_time(WINDOW_S)}."


def stage_name(stage: str) -> str:
    """A stage in words, on one line; a router of another version may tell other stages."""
    return plain(STAGE_NAMES.get(stage, stage))


def in_words(row: Row) -> dict[str, list[str]]:
    """The sentences for one row: of the request, of each choice by its number, and of its end."""
    found = {"request": [*_heading(row)], "end": [*_ending(row)]}
    for choice in row["choices"]:
        sentences = [_choice_heading(choice), *_sentences(row, choice)]
        found[str(choice["choice"])] = sentences
    return found


def _heading(row: Row) -> Iterator[str]:
    received = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["received_at"]))
    lane = row.get("lane", "-")
    yield plain(
        f"request {row['request_id']}: {row['outcome']}; endpoint {row['endpoint']}, lane {lane}, "
        f"tenant {row.get('tenant', '-')}, configuration {row.get('config', '-')}"
        + (f" ({row['arm']})" if "arm" in row else "")
        + (f", router {row['router']}" if "router" in row else "")
    )
    took = f"ended after {exact_time(row['total_s'])}" if "total_s" in row else "still running"
    prompt = counted(row.get("prompt_tokens", "-"), "prompt token")
    answer = counted(row.get("completion_tokens", 0), "token")
    cost = f", cost {row['cost']:.3g}" if "cost" in row else ""
    yield f"received {received}, {took}; {prompt}, {answer}{cost}"


def _choice_heading(choice: Row) -> str:
    prefill, decode = choice.get("prefill_replica", "-"), choice.get("decode_replica", "-")
    where = decode if choice["route"] == "local" else f"{prefill} -> {decode}"
    if choice["route"] == "prefill_only":
        where = prefill
    first = f"TTFT {exact_time(choice['ttft_s'])}" if "ttft_s" in choice else "no first token"
    if "predicted_ttft_s" in choice:
        first += f" (predicted {exact_time(choice['predicted_ttft_s'])})"
    last = f", TTLT {exact_time(choice['ttlt_s'])}" if "ttlt_s" in choice else ""
    if "running_s" in choice:
        last = f", {exact_time(choice['running_s'])} so far"
    return plain(f"choice {choice['choice']} on {where}: {first}{last}")


def _sentences(row: Row, choice: Row) -> Iterator[str]:
    took = _durations(choice["stages"])
    yield from _largest(choice)
    yield from _waited(row)
    outside_s = took.get("admission", 0.0) - row.get("queued_s", 0.0)
    other_router = any(not one["replica"] for one in choice.get("failover_spans", ()))
    if outside_s >= _LEAST_OUTSIDE_S and not other_router:
        outside = exact_time(outside_s)
        yield f"{outside} passed in the router outside its queue: it was read and tokenised."
    if "ttft_s" not in choice and "admitted_s" in choice and "total_s" in row:
        without_s = row["total_s"] - choice["admitted_s"]
        yield f"It got no token in the {exact_time(without_s)} after its replicas were chosen."
    queue_s = choice.get("queue_s", 0.0) - choice.get("sent_s", choice.get("admitted_s", 0.0))
    behind = _behind(row, choice, "prefill_queue")
    if queue_s >= _LEAST_S or behind:
        where = plain(choice.get("prefill_replica", "its replica"))
        nobody = "; no prompt is known that was computed there meanwhile"
        yield f"It was queued on {where} for {exact_time(queue_s)}{behind or nobody}."
    if took.get("decode_admission", 0.0) >= _LEAST_S:
        yield _AT_DECODE.get(choice.get("decode_waited_for", ""), _ON_OFFER).format(
            decode=plain(choice.get("decode_replica", "decode")),
            time=exact_time(choice.get("decode_admission_s", took["decode_admission"])),
            behind=_behind(row, choice, "decode_admission"),
        )
    yield from _transfer(choice, took)
    yield from _so_far(choice)
    yield from _decode(choice)
    yield from _lost(choice)


def _so_far(choice: Row) -> Iterator[str]:
    """What a choice that runs does now."""
    for stage in choice["stages"]:
        if goes_on(stage, choice.get("running_s")):
            tokens = counted(choice.get("completion_tokens", 0), "token")
            took = exact_time(stage["end_s"] - stage["begin_s"])
            yield f"Its {stage_name(stage['stage'])} goes on, for {took} so far; it has {tokens}."


def goes_on(stage: Row, present_s: float | None) -> bool:
    """Whether a stage lasts until the present, in seconds since the arrival."""
    return present_s is not None and bool(stage["end_s"] == present_s)


def _lost(choice: Row) -> Iterator[str]:
    """Each failover: where it was, when it stopped, and for how long."""
    for one in choice.get("failover_spans", ()):
        begin_s, pause_s = one["begin_s"], one["end_s"] - one["begin_s"]
        where, passed = plain(one["replica"]) or "Its router", exact_time(begin_s)
        if begin_s < choice.get("ttft_s", math.inf):
            # Nobody knows when a router was lost that had passed on no token.
            when, again = f" {passed} after its arrival", f"{exact_time(pause_s)} later"
            if not one["replica"]:
                when, again = " before its first token", f"{exact_time(one['end_s'])} after it came"
            yield f"{where} was lost{when}; it began again {again}."
        elif pause_s > 0:
            after = f"from {passed} after its arrival on it got no token for {exact_time(pause_s)}."
            yield f"{where} was lost: {after}"
        else:
            yield f"{where} was lost, and no token was late for that."
    if choice["retries"]:
        yield f"Full replicas refused it {_often(choice['retries'])} meanwhile."


def _waited(row: Row) -> Iterator[str]:
    if "waited_for" not in row:
        return
    reason = REASONS.get(row["waited_for"])
    why = reason.message if reason else plain(row["waited_for"])
    time_in = f" for {exact_time(row['queued_s'])}" if "queued_s" in row else ""
    before = counted(row["queued_before"], "request") if "queued_before" in row else "others"
    if row.get("stood_behind"):
        yield (
            f"It waited in the router's queue{time_in} behind {before}, which waited because {why}."
        )
    else:
        yield (
            f"It waited in the router's queue{time_in} because {why}; "
            f"{before} {'was' if row.get('queued_before') == 1 else 'were'} before it when it came."
        )


def _durations(stages: list[Row]) -> dict[str, float]:
    took: dict[str, float] = {}
    for one in stages:
        seconds = one["end_s"] - one["begin_s"]
        took[one["stage"]] = took.get(one["stage"], 0.0) + seconds
    return took


def _largest(choice: Row) -> Iterator[str]:
    ttft_s = choice.get("ttft_s", 0.0)
    found = _durations([one for one in choice["stages"] if one["begin_s"] < ttft_s])
    if not found:
        return
    stage = max(found, key=lambda name: found[name])
    share = f"{found[stage] / ttft_s:.0%}"
    yield f"The largest part of its TTFT was {stage_name(stage)}: {share}."


def _behind(row: Row, choice: Row, stage: str) -> str:
    named = [
        plain(
            f"{_named(row, one)} ({one['tenant']}, {one['endpoint']}, "
            f"{one['prompt_tokens']} prompt tokens, {exact_time(one['seconds'])}"
            f"{', still running' if one.get('running') else ''}"
            f"{', of ' + str(one['router']) if 'router' in one else ''})"
        )
        for one in row.get("behind", ())
        if one["stage"] == stage and one["choice"] == choice["choice"]
    ]
    return f" behind {', '.join(named)}" if named else ""


def _named(row: Row, blocker: Row) -> str:
    if blocker["request_id"] == row["request_id"] and "router" not in blocker:
        return f"its choice {blocker['of_choice']}"
    return str(blocker["request_id"])


def _transfer(choice: Row, took: dict[str, float]) -> Iterator[str]:
    if "transfer_bytes" not in choice or "ttft_s" not in choice:
        return
    delay_s = sum(took.get(stage, 0.0) for stage in ("offer", "decode_admission", "transfer"))
    moved = choice["transfer_bytes"]
    size = f"{moved / 1e6:.1f} MB" if moved >= 1e5 else f"{moved / 1e3:.1f} kB"
    delayed = ""
    if choice.get("ttlt_s", 0.0) > choice["ttft_s"] or choice.get("completion_tokens", 0) > 1:
        delay = f"its second token by {exact_time(delay_s)}" if delay_s >= _SHOWN_S else "no token"
        delayed = f"; that delayed {delay}"
    yield f"Its KV ({size}) was handed over{delayed}."


def _decode(choice: Row) -> Iterator[str]:
    if "mean_batch" in choice:
        share = choice.get("straggler_share", 0.0)
        yield (
            f"Its decode steps had {choice['mean_batch']:.1f} requests in the mean; "
            f"in {share:.0%} of them it had the most tokens."
        )
    if "longest_stall_s" in choice and "itl_p50_s" in choice:  # an older router has other names
        itl = f"p50 {exact_time(choice['itl_p50_s'])}, p95 {exact_time(choice['itl_p95_s'])}"
        yield f"Its ITL was {itl}; its longest stall was {exact_time(choice['longest_stall_s'])}."
    if choice["preemptions"]:
        yield f"It lost its KV blocks {_often(choice['preemptions'])} to requests before it."
    if again := choice["recomputed_tokens"]:
        yield f"{again:,} of its tokens {'was' if again == 1 else 'were'} computed again."


def counted(number: object, thing: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _often(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _ending(row: Row) -> Iterator[str]:
    for router, reason in row.get("behind_without", {}).items():
        yield plain(f"It may also have waited behind requests of {router}: {reason}.")
    if not row["choices"]:
        yield from _waited(row)
    if "reason" in row:
        yield f"It ended with {plain(row['outcome'])}: {plain(row['reason'])}"
    if "decided_s" in row:
        yield f"The refusal was decided {exact_time(row['decided_s'])} after its arrival."
    if "time_to_cancel_s" in row:
        yield f"Its replicas were free {exact_time(row['time_to_cancel_s'])} after its end."
