"""Which pair of replicas serves a request. Pure.

Prefill goes where the fewest prompt tokens wait, decode where the fewest requests are; the replica
that was used longest ago wins a tie. What this router has placed itself is known at once; what
replicas report is up to a heartbeat old, so the larger of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.membership import ReplicaRecord
from engine.errors import PromptTooLong, Unavailable

RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The replicas of one choice."""

    prefill: ReplicaRecord
    decode: ReplicaRecord


@dataclass(slots=True)
class _Held:
    requests: int = 0
    tokens: int = 0
    last: int = 0


class Hold:
    """One request's share in a replica's load."""

    def __init__(self, held: _Held, tokens: int) -> None:
        self._held: _Held | None = held
        self._tokens = tokens

    def release(self) -> None:
        """Take it back. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            held.requests -= 1
            held.tokens -= self._tokens


class Placement:
    """Chooses pairs and remembers what was placed where until it is released."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._turn = 0

    def choose(
        self,
        prefill: Sequence[ReplicaRecord],
        decode: Sequence[ReplicaRecord],
        prompt_tokens: int,
        most_tokens: int,
    ) -> Pair:
        """A pair whose pools can hold the prompt, and prompt with answer.

        Unavailable where a pool is empty, PromptTooLong where no pool is large enough.
        """
        first = _large_enough("prefill", prefill, prompt_tokens)
        second = _large_enough("decode", decode, most_tokens)
        return Pair(
            prefill=min(first, key=lambda record: (self._tokens(record), *self._load(record))),
            decode=min(second, key=self._load),
        )

    def hold(self, replica: ReplicaRecord, tokens: int) -> Hold:
        """Count a request with that many prompt tokens against the replica, until released."""
        held = self._held.setdefault(replica.id, _Held())
        self._turn += 1
        held.requests += 1
        held.tokens += tokens
        held.last = self._turn
        return Hold(held, tokens)

    def forget(self, living: Iterable[str]) -> None:
        """Drop what is known of replicas that hold nothing and are gone."""
        living = set(living)
        self._held = {
            name: held for name, held in self._held.items() if held.requests or name in living
        }

    def _tokens(self, record: ReplicaRecord) -> int:
        return self._held.get(record.id, _Held()).tokens

    def _load(self, record: ReplicaRecord) -> tuple[int, int]:
        held = self._held.get(record.id, _Held())
        return max(held.requests, record.load.waiting + record.load.running), held.last


def _large_enough(pool: str, replicas: Sequence[ReplicaRecord], tokens: int) -> list[ReplicaRecord]:
    if not replicas:
        raise Unavailable(f"no healthy {pool} replica", retry_after_s=RETRY_AFTER_S)
    fitting = [record for record in replicas if tokens <= capacity(record)]
    if not fitting:
        most = max(capacity(record) for record in replicas)
        raise PromptTooLong(
            f"{tokens} tokens do not fit the {pool} pool, which holds {most}", field="prompt"
        )
    return fitting


def capacity(record: ReplicaRecord) -> int:
    """How many tokens' KV a replica can hold when it is empty."""
    return record.load.blocks_total * record.load.block_size
