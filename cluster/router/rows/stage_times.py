"""The times of one choice, as its stream notes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.api import ChoiceSummary
from cluster.placement.types import Pair
from protos.decode_pb2 import Retired


@dataclass(slots=True)
class StageTimes:
    """The times of a choice for its summary and its row, in seconds as the replicas measured them.

    Monotonic are `began_s`, `sent_s` (the replica that computed the prompt was asked), `losses` of
    replicas, and `committed_s` (decode had its KV). `prefilled_by` computed the prompt. `retired`
    is the end of its last decode call. `on_vacated` hears how long a cancelled choice kept its
    replicas. `prefill_share_s` is its share of the passes over its prompt, and `decode_waited_for`
    what its offered KV waited for.
    """

    began_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    transfer_s: float = 0.0
    admission_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0
    sent_s: float | None = None
    committed_s: float | None = None
    transfer_bytes: int = 0
    prefilled_by: str = ""
    retired: Retired | None = None
    losses: list[float] = field(default_factory=list)
    retries: int = 0
    prefill_share_s: float = 0.0
    decode_waited_for: str = ""
    on_vacated: Callable[[float], None] | None = None

    def summary(self, choice: int, pair: Pair | None) -> ChoiceSummary:
        """The times of a finished choice; queue + prefill + first flush = TTFT.

        Without a pair another router saw the choice end, and its replicas are not known.
        """
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
            prefill_replica=pair.prefill.id if pair else "",
            decode_replica=pair.decode.id if pair else "",
            cached_tokens=self.cached_tokens,
        )
