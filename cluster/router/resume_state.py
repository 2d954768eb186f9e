"""The resume state of one choice: enough to go on with it on any replica, at any instant.

The tokens that follow depend on the token ids so far, the sampling and its seed alone. Before its
first token a choice is a prompt. After it, a decode replica computes prompt and output again, and
goes on behind the tokens that the client has.
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
    """One choice of a prepared request, and how far it is.

    `output` are the sent tokens, and `finished` says whether the last token was sent. `times` are
    the times for the summary.
    """

    prepared: PreparedRequest
    choice: int
    times: StageTimes
    output: list[int] = field(default_factory=list)
    finished: bool = False

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
        """The request to the decode replica."""
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
            flush_s=self.prepared.delivery.flush_delay_s,
            flush_tokens=self.prepared.delivery.flush_tokens,
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
