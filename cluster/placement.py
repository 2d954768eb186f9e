"""Which pair of replicas serves a request. Pure.

Prefill goes where the fewest prompt tokens are to be computed, those of this request that are not
cached there among them; decode where the fewest requests are; the replica that was used longest
ago wins a tie. What this router has placed itself is known at once; what replicas report is up to
a heartbeat old, so the larger of the two counts.

Where a decode replica has nearly all of a prompt in its cache, as after a turn of a chat, it
computes the rest itself, and there is nothing to hand over. One of role `both` computes every
prompt it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.affinity import KnownPrefixes
from cluster.membership import ReplicaRecord
from engine.errors import PromptTooLong, Unavailable

RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The replicas of one choice; `cached_tokens` of the prompt are expected where it is computed.

    A `local` pair is one decode replica that computes the prompt itself.
    """

    prefill: ReplicaRecord
    decode: ReplicaRecord
    cached_tokens: int = 0

    @property
    def local(self) -> bool:
        """Whether there is nothing to hand over."""
        return self.prefill.id == self.decode.id


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: int
    digests: Sequence[bytes]


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
    """Chooses pairs and remembers what was placed where until it is released.

    A decode replica computes at most `local_tokens` of a prompt (0: none), and only while it has
    fewer than `decode_batch` requests.
    """

    def __init__(self, local_tokens: int = 0, decode_batch: int = 0) -> None:
        self._local_tokens = local_tokens
        self._decode_batch = decode_batch
        self._known = KnownPrefixes()
        self._held: dict[str, _Held] = {}
        self._turn = 0

    def choose(
        self,
        prefill: Sequence[ReplicaRecord],
        decode: Sequence[ReplicaRecord],
        prompt_tokens: int,
        most_tokens: int,
        digests: Sequence[bytes] = (),
    ) -> Pair:
        """A pair whose pools can hold the prompt, and prompt with answer.

        `digests` are those of the prompt's full blocks. Unavailable where a pool is empty,
        PromptTooLong where no pool is large enough.
        """
        second = _large_enough("decode", decode, most_tokens)
        # One of role `both` hands nothing over, so it must hold prompt and answer.
        able = [record for record in prefill if record.role != "both" or record in second]
        first = _large_enough("prefill", able, prompt_tokens)
        prompt = _Prompt(prompt_tokens, digests)

        def work(record: ReplicaRecord) -> tuple[int, int, int]:
            missing = prompt_tokens - self._cached(record, prompt)
            return self._tokens(record) + missing, *self._load(record)

        best = min(first, key=work)
        cached = self._cached(best, prompt)
        here = best if best.role == "both" else self._local(second, prompt, cached)
        if here is not None:
            return Pair(here, here, self._cached(here, prompt))
        return Pair(best, min(second, key=self._load), cached)

    def learn(self, replica: ReplicaRecord, digests: Sequence[bytes]) -> None:
        """The replica computes these blocks, or has them."""
        self._known.learn(replica.id, digests, replica.load.blocks_total)

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
        self._known.forget(living)
        self._held = {
            name: held for name, held in self._held.items() if held.requests or name in living
        }

    def _local(
        self, decode: Sequence[ReplicaRecord], prompt: _Prompt, elsewhere: int
    ) -> ReplicaRecord | None:
        """The decode replica that had better compute the prompt's rest itself, if there is one."""
        found = [
            (cached, record)
            for record in decode
            if (cached := self._cached(record, prompt)) > elsewhere
            and prompt.tokens - cached <= self._local_tokens
            and self._load(record)[0] < self._decode_batch
        ]
        if not found:
            return None
        return min(found, key=lambda entry: (-entry[0], *self._load(entry[1])))[1]

    def _cached(self, record: ReplicaRecord, prompt: _Prompt) -> int:
        """Tokens of the prompt that are cached there, as far as is known; never all of them."""
        if not prompt.digests:
            return 0
        usable = (prompt.tokens - 1) // record.load.block_size
        known = self._known.longest(record.id, prompt.digests[:usable])
        return known * record.load.block_size

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
