"""A stream as another router goes on with it: its request, and how far each choice is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cluster.api import GenerateRequest, Started, Summary, Tokens
from cluster.api.proto_convert import request_from_proto
from cluster.api.tracing import Trace
from cluster.journal.entries import FirstTokenStages, JournalEntry
from engine.errors import Internal, TandemError
from protos.journal_pb2 import JournaledRequest
from tandem_client.messages import event_from_proto
from tandem_client.protos import inference_pb2


@dataclass(slots=True)
class RebuiltChoice:
    """The tokens of a choice so far.

    `events` are those with its tokens, each with the seconds from the arrival of its request.
    `first` are the stages up to its first token. `local`: decode computed its prompt.
    """

    output: list[int] = field(default_factory=list)
    events: list[tuple[float, Tokens]] = field(default_factory=list)
    finished: bool = False
    first: FirstTokenStages | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class RebuiltStream:
    """A request with token ids, a seed and complete sampling, and what was made of it.

    It arrived at `arrived_at`, in seconds since the epoch, and was admitted `admitted_s` later.
    Weights of another `model_identity` would go on with other tokens. `last` is how the stream
    ended, if it has.
    """

    request: GenerateRequest
    started: Started
    arrived_at: float
    model_identity: str
    choices: tuple[RebuiltChoice, ...]
    last: Summary | TandemError | None
    admitted_s: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether all tokens were made, perhaps without a summary."""
        return all(choice.finished for choice in self.choices)


def rebuilt(record: JournaledRequest, entries: Iterable[JournalEntry]) -> RebuiltStream:
    """The stream with that request and all of these entries.

    Raises Internal where they contradict each other, and InvalidRequest for a request that this
    version does not take.
    """
    trace = Trace(record.x_request_id, record.traceparent)
    request = replace(request_from_proto(record.request, trace=trace), note=record.note)
    started = event_from_proto(inference_pb2.GenerateEvent(started=record.started))
    assert isinstance(started, Started)
    choices = tuple(RebuiltChoice() for _ in range(request.n))
    last: Summary | TandemError | None = None
    for entry in entries:
        if last is not None:
            raise Internal("an entry of the journal comes after the end of its stream")
        if isinstance(entry.event, Tokens):
            _add(choices, entry, entry.event)
        else:
            last = entry.event
    return RebuiltStream(
        request=request,
        started=replace(started, note=record.note, form=record.form),
        arrived_at=record.arrived_at,
        model_identity=record.model_identity,
        choices=choices,
        last=last,
        admitted_s=record.admitted_s,
    )


def _add(choices: tuple[RebuiltChoice, ...], entry: JournalEntry, tokens: Tokens) -> None:
    if tokens.choice >= len(choices):
        raise Internal(f"an entry of the journal has choice {tokens.choice} of {len(choices)}")
    choice = choices[tokens.choice]
    if choice.finished or tokens.index != len(choice.output):
        raise Internal(f"token {tokens.index} stands where {len(choice.output)} was due")
    choice.output += tokens.ids
    choice.events.append((entry.after_s, tokens))
    choice.finished = tokens.finish_reason is not None
    if entry.first is not None:
        if choice.first is None:
            choice.local = entry.first.prefill_replica == entry.first.decode_replica
        choice.first = entry.first
