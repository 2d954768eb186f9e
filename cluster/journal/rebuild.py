"""A stream as another router goes on with it: its request, and how far each choice is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cluster.api import GenerateRequest, Started, Summary, Tokens
from cluster.api.proto_convert import request_from_proto
from cluster.journal.entries import FirstTokenStages, JournalEntry
from engine.errors import Internal, TandemError
from protos.journal_pb2 import JournaledRequest
from tandem_client.messages import event_from_proto
from tandem_client.protos import inference_pb2


@dataclass(slots=True)
class RebuiltChoice:
    """The tokens of a choice so far. `first` are the stages up to its first token."""

    output: list[int] = field(default_factory=list)
    finished: bool = False
    first: FirstTokenStages | None = None


@dataclass(frozen=True, slots=True)
class RebuiltStream:
    """A request with token ids, a seed and complete sampling, and what was made of it.

    It arrived at `arrived_at`, in seconds since the epoch. Weights of another `model_identity`
    would go on with other tokens. `last` is how the stream ended, if it has.
    """

    request: GenerateRequest
    started: Started
    arrived_at: float
    model_identity: str
    choices: tuple[RebuiltChoice, ...]
    last: Summary | TandemError | None

    @property
    def finished(self) -> bool:
        """Whether all tokens were made, perhaps without a summary."""
        return all(choice.finished for choice in self.choices)


def rebuilt(record: JournaledRequest, entries: Iterable[JournalEntry]) -> RebuiltStream:
    """The stream with that request and all of these entries.

    Raises Internal where they contradict each other, and InvalidRequest for a request that this
    version does not take.
    """
    request = replace(request_from_proto(record.request), note=record.note)
    started = event_from_proto(inference_pb2.GenerateEvent(started=record.started))
    assert isinstance(started, Started)
    choices = tuple(RebuiltChoice() for _ in range(request.n))
    last: Summary | TandemError | None = None
    for entry in entries:
        if last is not None:
            raise Internal("an entry of the journal comes after the end of its stream")
        if isinstance(entry.event, Tokens):
            _add(choices, entry.event, entry.first)
        else:
            last = entry.event
    return RebuiltStream(
        request=request,
        started=replace(started, note=record.note, form=record.form),
        arrived_at=record.arrived_at,
        model_identity=record.model_identity,
        choices=choices,
        last=last,
    )


def _add(
    choices: tuple[RebuiltChoice, ...], tokens: Tokens, first: FirstTokenStages | None
) -> None:
    if tokens.choice >= len(choices):
        raise Internal(f"an entry of the journal has choice {tokens.choice} of {len(choices)}")
    choice = choices[tokens.choice]
    if choice.finished or tokens.index != len(choice.output):
        raise Internal(f"token {tokens.index} stands where {len(choice.output)} was due")
    choice.output += tokens.ids
    choice.finished = tokens.finish_reason is not None
    if first is not None:
        choice.first = first
