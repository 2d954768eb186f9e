"""A prepared request, and the resume state of each of its choices.

Both are enough to go on with a choice on any replica, at any instant. The tokens that follow depend
on the token ids so far, the sampling and its seed alone. Before its first token a choice is a
prompt. After it, a decode replica computes prompt and output again, and goes on behind the tokens
that the client has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.api import Tokens
from cluster.config.stream_mode import StreamDelivery
from cluster.placement.types import Pair, PlacementRequest
from cluster.router.rows.stage_times import StageTimes
from engine.kv.prefix_digest import DEFAULT_TENANT, Chain
from engine.types.lane import Lane
from engine.types.sampling_params import SamplingParams
from engine.types.urgency import Urgency
from protos import decode_pb2, prefill_pb2
from protos.shared_prompt import SharedPrompt, urgency_to_proto


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be served: its prompt and sampling, the budgets of its endpoint.

    `chain` has the digests of the prompt's full blocks; None where there is no prefix cache.
    Where the prompt's own tokens are scored, these are the tokens from `scored_from` on, each with
    the `top` likeliest at its position. `form` is that of a chat's answers, as in Started.
    `traceparent` names the request's trace to the replicas.
    """

    request_id: str
    prompt: SharedPrompt
    choices: int
    ttft_budget_s: float
    itl_s: float = 0.06
    lane: Lane = "interactive"
    delivery: StreamDelivery = field(default_factory=StreamDelivery)
    tenant: str = DEFAULT_TENANT
    chain: Chain | None = None
    scored_from: int | None = None
    top: int = 0
    batch_window_s: float | None = None
    form: str = ""
    traceparent: str = ""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return self.prompt.ids

    @property
    def sampling(self) -> SamplingParams:
        """The complete sampling."""
        return self.prompt.sampling

    @property
    def most_tokens(self) -> int:
        """The most tokens whose KV a choice can need; the last token has no KV."""
        return len(self.prompt_ids) + (self.sampling.max_tokens or 1) - 1

    def digests(self, output: Sequence[int] = ()) -> list[bytes]:
        """The digests of the full blocks of prompt and output."""
        if self.chain is None:
            return []
        if not output:
            return self.chain.digests
        # Each choice calls this, so the tokens that the prompt's digests cover are not copied.
        return self.chain.extended([*self.prompt_ids[self.chain.covered :], *output])


@dataclass(frozen=True, slots=True)
class ChoiceSoFar:
    """How far another router brought a choice. Its `times` are those up to its first token.

    `began_s` in them is monotonic on this host. `decode_replica` had its KV last. `earlier` are the
    events with its tokens, each with its time (monotonic).
    """

    output: tuple[int, ...]
    finished: bool
    times: StageTimes
    decode_replica: str = ""
    earlier: Sequence[tuple[float, Tokens]] = ()

    def resume_state(self, prepared: PreparedRequest, choice: int) -> ResumeState:
        """The state to go on from."""
        state = ResumeState(prepared, choice, self.times, list(self.output), self.finished)
        state.decode_replica, state.earlier = self.decode_replica, self.earlier
        return state


@dataclass(slots=True)
class ResumeState:
    """One choice of a prepared request, and how far it is.

    `output` are the sent tokens, and `finished` says whether the last token was sent. `times` are
    the times for the summary. `urgency` is that of its assignment, and `left_s` what it left of
    the TTFT budget, where the budget counts. `decode_replica` computes it. `earlier` is as in
    ChoiceSoFar.
    """

    prepared: PreparedRequest
    choice: int
    times: StageTimes
    output: list[int] = field(default_factory=list)
    finished: bool = False
    urgency: Urgency = Urgency.PROMPTS
    left_s: float | None = None
    decode_replica: str = ""
    earlier: Sequence[tuple[float, Tokens]] = ()

    @property
    def name(self) -> str:
        """The name of the choice on all replicas, unchanged by a failover."""
        return f"{self.prepared.request_id}.{self.choice}"

    @property
    def named_in_log(self) -> dict[str, object]:
        """The fields that find the choice in the log."""
        return {"request_id": self.prepared.request_id, "choice": self.choice}

    def placement_request(self, first: PlacementRequest) -> PlacementRequest:
        """The needs of the choice now; `first` has those before any token."""
        if not self.output:
            return first
        tokens = first.prompt_tokens + len(self.output)
        return replace(first, prompt_tokens=tokens, digests=self.prepared.digests(self.output))

    def prefill_request(self, transfer: str, pair: Pair) -> prefill_pb2.PrefillRequest:
        """The request to the prefill replica; `transfer` names the KV on both replicas."""
        return prefill_pb2.PrefillRequest(
            transfer=transfer,
            choice=self.choice,
            decode_replica="" if pair.prefill_only else pair.decode.id,
            scoring=self._scoring(),
            ttft_budget_s=self._ttft_budget_s,
            lane=self.prepared.lane,
            urgency=urgency_to_proto(self.urgency),
            request_id=self.prepared.request_id,
            traceparent=self.prepared.traceparent,
            tenant=self.prepared.tenant,
            progress=self.prepared.delivery.progress,
        )

    def decode_request(self, transfer: str, pair: Pair) -> decode_pb2.DecodeRequest:
        """The request to the decode replica."""
        return decode_pb2.DecodeRequest(
            transfer=transfer,
            output_ids=self.output,
            choice=self.choice,
            prefill_replica=pair.prefill.id,
            prefill_address=pair.prefill.address,
            request_id=self.prepared.request_id,
            traceparent=self.prepared.traceparent,
            tenant=self.prepared.tenant,
            local_prefill=pair.local,
            flush_s=self.prepared.delivery.flush_delay_s,
            flush_tokens=self.prepared.delivery.flush_tokens,
            lane=self.prepared.lane,
            ttft_budget_s=self._ttft_budget_s,
            urgency=urgency_to_proto(self.urgency),
            batch_window_s=self.prepared.batch_window_s,
            progress=self.prepared.delivery.progress,
            scoring=self._scoring(),
        )

    @property
    def _ttft_budget_s(self) -> float:
        return self.prepared.ttft_budget_s if self.left_s is None else self.left_s

    def _scoring(self) -> prefill_pb2.Scoring | None:
        first, top = self.prepared.scored_from, self.prepared.top
        return None if first is None else prefill_pb2.Scoring(first=first, top=top)
