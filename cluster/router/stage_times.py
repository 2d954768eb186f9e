"""Where a choice's time went, stage by stage, as the router notes it from what replicas say."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.api import ChoiceSummary
from cluster.placement.types import Pair


@dataclass(slots=True)
class StageTimes:
    """When things happened, for the summary; durations as the replicas measured them."""

    began_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    transfer_s: float = 0.0
    admission_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0

    def summary(self, choice: int, pair: Pair) -> ChoiceSummary:
        """The times of a finished choice; queue + prefill + first flush = TTFT."""
        return ChoiceSummary(
            choice=choice,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            first_flush_s=self.ttft_s - self.queue_s - self.prefill_s,
            ttft_s=self.ttft_s,
            transfer_s=self.transfer_s,
            decode_admission_s=self.admission_s,
            decode_s=self.decode_s,
            preemptions=self.preemptions,
            prefill_replica=pair.prefill.id,
            decode_replica=pair.decode.id,
            cached_tokens=self.cached_tokens,
        )
