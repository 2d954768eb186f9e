"""The times of one choice, as its stream notes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.api import ChoiceSummary
from cluster.placement.types import Pair
from cluster.router.rows.failover_spans import ReplicaLoss
from cluster.telemetry.requests.row import Route
from protos.decode_pb2 import Admitted, Retired
from protos.prefill_pb2 import FirstToken


@dataclass(slots=True)
class StageTimes:
    """The times of a choice for its summary and its row, in seconds as the replicas measured them.

    Monotonic are `began_s`, `sent_s` (the replica that computes the prompt was asked, for the last
    time), `offered_s` and `committed_s` (the KV was on offer, and decode had it) and `decoded_s`
    (its last replica had the last token). A replica tells its times from the arrival of a call;
    they are counted from the time at which the router sent that call. `prefilled_by` computed the
    prompt. `retired` is the end of its last decode call. `on_vacated` hears how long a cancelled
    choice kept its replicas. `prefill_share_s` is its share of the passes over its prompt, and
    `decode_waited_for` what its offered KV waited for. `left_share_s` is its share of the steps of
    replicas that it left, or that worked for it when it was cancelled. `left_prefill_share_s`
    is the same of prompts that these replicas did not finish.

    Of a choice that another router had, `stopped_s` is when it last went on there (monotonic), and
    `route` how its KV came.
    """

    began_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    flush_s: float | None = None
    transfer_s: float = 0.0
    admission_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0
    sent_s: float | None = None
    offered_s: float | None = None
    committed_s: float | None = None
    decoded_s: float | None = None
    transfer_bytes: int = 0
    prefilled_by: str = ""
    retired: Retired | None = None
    losses: list[ReplicaLoss] = field(default_factory=list)
    retries: int = 0
    prefill_share_s: float = 0.0
    decode_waited_for: str = ""
    left_share_s: float = 0.0
    left_prefill_share_s: float = 0.0
    stopped_s: float | None = None
    route: Route | None = None
    on_vacated: Callable[[float], None] | None = None

    @property
    def first_flush_s(self) -> float:
        """From the first token at its replica to the router; the rest of TTFT if not measured."""
        if self.flush_s is None:
            return self.ttft_s - self.queue_s - self.prefill_s
        return self.flush_s

    def asked(self, sent_s: float) -> None:
        """Note that replicas were asked for the first token; what others did before is void."""
        self.sent_s = sent_s
        self.offered_s = self.committed_s = None
        self.transfer_s = self.admission_s = 0.0
        self.transfer_bytes = 0

    def lost(self, pair: Pair, at_s: float) -> None:
        """Note that a replica of the pair was lost, or the KV between the two."""
        self.losses.append(ReplicaLoss(at_s, self.sent_s, pair.prefill.id, pair.decode.id))

    def first(self, first: FirstToken, replica: str, sent_s: float, now: float) -> None:
        """Note the first token of a call to that replica. The way there and back is in the flush.

        A replica of an older version does not say how long it held the call.
        """
        self.sent_s, self.prefilled_by = sent_s, replica
        self.ttft_s = now - self.began_s
        self.queue_s = sent_s - self.began_s + first.queue_s
        self.prefill_s, self.prefill_share_s = first.prefill_s, first.share_s
        self.flush_s = first.flush_s + now - sent_s - first.held_s if first.held_s else None
        self.cached_tokens = first.cached_tokens

    def admitted(self, admitted: Admitted, sent_s: float, now: float) -> None:
        """Note that decode has the KV of a call."""
        self.transfer_s = admitted.transfer_s
        self.admission_s = admitted.admission_s
        self.decode_waited_for = admitted.waited_for
        self.transfer_bytes = admitted.bytes
        if admitted.held_s:
            self.offered_s = sent_s + admitted.offered_s
            self.committed_s = sent_s + admitted.held_s
        else:
            self.committed_s = now
            self.offered_s = now - admitted.transfer_s - admitted.admission_s

    def ended(self, retired: Retired, sent_s: float) -> None:
        """Note the end of a decode call."""
        self.decode_s = retired.decode_s
        self.preemptions = retired.preemptions
        self.retired = retired
        self.decoded_s = sent_s + retired.held_s if retired.held_s else None

    def summary(self, choice: int, pair: Pair | None) -> ChoiceSummary:
        """The times of a finished choice; queue + prefill + first flush = TTFT.

        Without a pair another router saw the choice end, and its replicas are not known.
        """
        return ChoiceSummary(
            choice=choice,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            first_flush_s=self.first_flush_s,
            ttft_s=self.ttft_s,
            transfer_s=self.transfer_s,
            decode_admission_s=self.admission_s,
            decode_s=self.decode_s,
            preemptions=self.preemptions,
            prefill_replica=self.prefilled_by or (pair.prefill.id if pair else ""),
            decode_replica=pair.decode.id if pair else "",
            cached_tokens=self.cached_tokens,
        )
