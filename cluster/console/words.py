"""One request in words, for the console and for terminals: what it waited for, and behind whom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from cluster.admission.refusal_reasons import REASONS

# The shortest wait that gets a sentence.
_LEAST_S = 1e-3
Row = dict[str, Any]


def in_words(row: Row) -> dict[str, list[str]]:
    """The sentences for one row: of the request, of each choice by its number, and of its end."""
    found = {"request": [*_heading(row)], "end": [*_ending(row)]}
    for choice in row["choices"]:
        sentences = [_choice_heading(choice), *_sentences(row, choice)]
        found[str(choice["choice"])] = sentences
    return found


def plain(value: object) -> str:
    """A value of a row as one line for a terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(value))


def duration(seconds: float) -> str:
    """A time as text, from 10 s on in seconds."""
    return f"{1000 * seconds:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _heading(row: Row) -> Iterator[str]:
    received = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["received_at"]))
    lane = row.get("lane", "-")
    yield plain(
        f"request {row['request_id']}: {row['outcome']}; endpoint {row['endpoint']}, lane {lane}, "
        f"tenant {row.get('tenant', '-')}, configuration {row.get('config', '-')}"
        + (f" ({row['arm']})" if "arm" in row else "")
    )
    took = duration(row["total_s"]) if "total_s" in row else "-"
    prompt, answer = row.get("prompt_tokens", 0), row.get("completion_tokens", 0)
    cost = f", cost {row['cost']:.3g}" if "cost" in row else ""
    yield f"received {received}, ended after {took}; {prompt} prompt tokens, {answer} tokens{cost}"


def _choice_heading(choice: Row) -> str:
    prefill, decode = choice.get("prefill_replica", "-"), choice.get("decode_replica", "-")
    where = decode if choice["route"] == "local" else f"{prefill} -> {decode}"
    if choice["route"] == "prefill_only":
        where = prefill
    first = f"TTFT {duration(choice['ttft_s'])}" if "ttft_s" in choice else "no first token"
    if "predicted_ttft_s" in choice:
        first += f" (predicted {duration(choice['predicted_ttft_s'])})"
    last = f", TTLT {duration(choice['ttlt_s'])}" if "ttlt_s" in choice else ""
    return plain(f"choice {choice['choice']} on {where}: {first}{last}")


def _sentences(row: Row, choice: Row) -> Iterator[str]:
    took = _durations(choice)
    yield from _largest(choice, took)
    if took.get("admission", 0.0) >= _LEAST_S:
        yield from _waited(row)
    if "ttft_s" not in choice and "admitted_s" in choice:
        without_s = row.get("total_s", 0.0) - choice["admitted_s"]
        yield f"It got no token in the {duration(without_s)} after its replicas were chosen."
    queue_s = took.get("prefill_queue", 0.0)
    behind = _behind(row, choice, "queue")
    if queue_s >= _LEAST_S or behind:
        where = plain(choice.get("prefill_replica", "its replica"))
        nobody = " behind no ended request of this router"
        yield f"It was queued on {where} for {duration(queue_s)}{behind or nobody}."
    if took.get("decode_admission", 0.0) >= _LEAST_S:
        behind = _behind(row, choice, "decode_admission")
        where = plain(choice.get("decode_replica", "decode"))
        yield f"{where} had no room for its KV for {duration(took['decode_admission'])}{behind}."
    yield from _transfer(choice, took)
    yield from _decode(choice)


def _waited(row: Row) -> Iterator[str]:
    if "waited_for" in row:
        reason = REASONS.get(row["waited_for"])
        why = reason.message if reason else plain(row["waited_for"])
        queued = row.get("queued_before", 0)
        yield (
            f"It waited in the router's queue because {why}; "
            f"{queued} requests waited there when it came."
        )


def _durations(choice: Row) -> dict[str, float]:
    took: dict[str, float] = {}
    for one in choice["stages"]:
        seconds = one["end_s"] - one["begin_s"]
        took[one["stage"]] = took.get(one["stage"], 0.0) + seconds
    return took


def _largest(choice: Row, took: dict[str, float]) -> Iterator[str]:
    ttft_s = choice.get("ttft_s")
    stages = ("admission", "failover", "prefill_queue", "prefill", "first_flush")
    found = {stage: took[stage] for stage in stages if stage in took}
    if not ttft_s or not found:
        return
    stage = max(found, key=lambda name: found[name])
    yield f"Most of its TTFT went to {stage}: {100 * found[stage] / ttft_s:.0f} %."


def _behind(row: Row, choice: Row, stage: str) -> str:
    named = [
        plain(
            f"{one['request_id']} ({one['tenant']}, {one['endpoint']}, "
            f"{one['prompt_tokens']} prompt tokens, {duration(one['seconds'])})"
        )
        for one in row.get("behind", ())
        if one["stage"] == stage and one["choice"] == choice["choice"]
    ]
    return f" behind {', '.join(named)}" if named else ""


def _transfer(choice: Row, took: dict[str, float]) -> Iterator[str]:
    if "transfer_bytes" not in choice:
        return
    delay_s = sum(took.get(stage, 0.0) for stage in ("offer", "decode_admission", "transfer"))
    size = f"{choice['transfer_bytes'] / 1e6:.1f} MB"
    yield f"Its KV ({size}) was handed over; that delayed its second token by {duration(delay_s)}."


def _decode(choice: Row) -> Iterator[str]:
    if "mean_batch" in choice:
        share = 100 * choice.get("straggler_share", 0.0)
        yield (
            f"Its decode steps had {choice['mean_batch']:.1f} requests in the mean; "
            f"in {share:.0f} % of them it had the most tokens."
        )
    if "longest_stall_s" in choice:
        itl = f"p50 {duration(choice['gap_p50_s'])}, p95 {duration(choice['gap_p95_s'])}"
        yield f"Its ITL was {itl}; its longest stall was {duration(choice['longest_stall_s'])}."
    if choice["preemptions"]:
        yield f"It lost its KV blocks {choice['preemptions']} times to older requests."
    if choice["failovers"]:
        pause = duration(choice["failover_pause_s"])
        retries = f", {choice['retries']} refusals by full replicas" if choice["retries"] else ""
        yield f"It failed over {choice['failovers']} times, {pause} without tokens{retries}."
    if choice["recomputed_tokens"]:
        yield f"{choice['recomputed_tokens']} of its tokens were computed again."


def _ending(row: Row) -> Iterator[str]:
    if not row["choices"]:
        yield from _waited(row)
    if "reason" in row:
        yield f"It ended with {plain(row['outcome'])}: {plain(row['reason'])}"
    if "decided_s" in row:
        yield f"The refusal was decided {duration(row['decided_s'])} after its arrival."
    if "time_to_cancel_s" in row:
        yield f"Its replicas were free {duration(row['time_to_cancel_s'])} after its end."
