"""What one choice of a request is at any instant: enough to go on with it on any replica.

What follows depends on the token ids so far, the sampling and its seed alone. Before its first
token it is a prompt still; later a decode replica computes prompt and output again, and goes on
behind what the client has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.placement.types import Pair, PlacementRequest
from cluster.router.preprocessor import PreparedRequest
from cluster.router.stream_metrics import StageTimes
from protos import decode_pb2, prefill_pb2
from protos.convert import sampling_to_proto, urgency_to_proto


@dataclass(slots=True)
class ResumeState:
    """A prepared request's choice, with the tokens that were sent, and whether that was the last.

    `times` are those of the summary so far.
    """

    prepared: PreparedRequest
    choice: int
    times: StageTimes
    output: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def name(self) -> str:
        """The same for as long as the choice lives, wherever it is."""
        return f"{self.prepared.request_id}.{self.choice}"

    @property
    def named_in_log(self) -> dict[str, object]:
        """The fields by which a line of the log is found again."""
        return {"request_id": self.prepared.request_id, "choice": self.choice}

    def asks(self, ask: PlacementRequest) -> PlacementRequest:
        """What it needs now of a replica, having asked for that at first."""
        if not self.output:
            return ask
        tokens, digests = ask.prompt_tokens + len(self.output), self.prepared.digests(self.output)
        return replace(ask, prompt_tokens=tokens, digests=digests)

    def prefill_request(self, transfer: str, pair: Pair) -> prefill_pb2.PrefillRequest:
        """What the pair's prefill replica is asked for; `transfer` names the KV on both."""
        return prefill_pb2.PrefillRequest(
            transfer=transfer,
            prompt_ids=self.prepared.prompt_ids,
            sampling=sampling_to_proto(self.prepared.sampling),
            choice=self.choice,
            decode_replica="" if pair.prefill_only else pair.decode.id,
            scoring=self._scoring(),
            ttft_budget_s=self.prepared.ttft_budget_s,
            lane=self.prepared.lane,
            urgency=urgency_to_proto(self.prepared.urgency),
            request_id=self.prepared.request_id,
            tenant=self.prepared.tenant,
            progress=self.prepared.delivery.progress,
        )

    def decode_request(self, transfer: str, pair: Pair) -> decode_pb2.DecodeRequest:
        """What the pair's decode replica is asked for."""
        return decode_pb2.DecodeRequest(
            transfer=transfer,
            prompt_ids=self.prepared.prompt_ids,
            output_ids=self.output,
            sampling=sampling_to_proto(self.prepared.sampling),
            choice=self.choice,
            prefill_replica=pair.prefill.id,
            prefill_address=pair.prefill.address,
            request_id=self.prepared.request_id,
            tenant=self.prepared.tenant,
            local_prefill=pair.local,
            flush_s=self.prepared.delivery.hold_s,
            flush_tokens=self.prepared.delivery.hold_tokens,
            lane=self.prepared.lane,
            ttft_budget_s=self.prepared.ttft_budget_s,
            urgency=urgency_to_proto(self.prepared.urgency),
            batch_window_s=self.prepared.batch_window_s,
            progress=self.prepared.delivery.progress,
            scoring=self._scoring(),
        )

    def _scoring(self) -> prefill_pb2.Scoring | None:
        first, top = self.prepared.scored_from, self.prepared.top
        return None if first is None else prefill_pb2.Scoring(first=first, top=top)
