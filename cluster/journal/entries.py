"""Entries of the journal as bytes, and back: tokens, the summary, or the failure of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from cluster.api import Event, GenerateRequest, Started, Summary, Tokens
from cluster.api.error_mapping import error_from_failure
from cluster.api.proto_convert import event_to_proto, request_to_proto
from engine.errors import Internal, TandemError
from protos import journal_pb2
from protos.convert import tokens_to_proto
from protos.status import failure_to_proto
from tandem_client.messages import event_from_proto, tokens_from_proto
from tandem_client.protos import inference_pb2

# What an entry holds. Other events are not journaled.
JOURNALED = (Tokens, Summary, TandemError)
Journaled = Tokens | Summary | TandemError
# The key of the field `tokens` of a JournaledEvent in protobuf's encoding: field 1, bytes.
_TOKENS_KEY = b"\x0a"


@dataclass(frozen=True, slots=True)
class FirstTokenStages:
    """The stages of a choice up to its first token, in seconds, for the summary.

    `decode_replica` computes the choice, and has its KV.
    """

    queue_s: float
    prefill_s: float
    ttft_s: float
    cached_tokens: int = 0
    decode_replica: str = ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry as it was read. `sequence` counts from 1; `sealed` are its bytes in Redis.

    `first` stands with the first tokens of a choice.
    """

    sequence: int
    event: Journaled
    first: FirstTokenStages | None
    sealed: bytes

    @property
    def last(self) -> bool:
        """Whether the stream has ended with this entry."""
        return not isinstance(self.event, Tokens)


def journaled_request(
    request: GenerateRequest, started: Started, arrived_at: float, model_identity: str
) -> journal_pb2.JournaledRequest:
    """The record of a prepared request: with token ids, a seed and complete sampling.

    It arrived at `arrived_at`, in seconds since the epoch. `model_identity` names the weights.
    """
    return journal_pb2.JournaledRequest(
        request=request_to_proto(request),
        started=event_to_proto(started).started,
        note=request.note,
        arrived_at=arrived_at,
        model_identity=model_identity,
    )


def joined(tokens: Tokens, more: Tokens) -> Tokens:
    """Two events of one choice that follow each other, as one event."""
    return Tokens(
        tokens.choice,
        tokens.index,
        tokens.ids + more.ids,
        tokens.text + more.text,
        more.finish_reason,
        tokens.sampled + more.sampled,
    )


def merged(events: list[Event | TandemError]) -> list[Event | TandemError]:
    """The events with the Tokens of each choice joined, up to the next event of another kind."""
    result: list[Event | TandemError] = []
    places: dict[int, int] = {}
    for event in events:
        if isinstance(event, Tokens):
            place = places.get(event.choice)
            if place is None:
                places[event.choice] = len(result)
                result.append(event)
            else:
                before = result[place]
                assert isinstance(before, Tokens)
                result[place] = joined(before, event)
        else:
            places.clear()
            result.append(event)
    return result


def entry_bytes(event: Journaled, first: FirstTokenStages | None) -> bytes:
    """The event of an entry as bytes, without a seal."""
    if isinstance(event, Tokens):
        run = tokens_to_proto(
            event.choice, event.index, event.ids, event.text, event.finish_reason, event.sampled
        ).SerializeToString()
        if first is None:
            # As a JournaledEvent with these tokens is encoded, in half of the time.
            return b"".join((_TOKENS_KEY, _varint(len(run)), run))
        wire = journal_pb2.JournaledEvent(tokens=inference_pb2.Tokens.FromString(run))
        wire.first.queue_s, wire.first.prefill_s = first.queue_s, first.prefill_s
        wire.first.ttft_s, wire.first.cached_tokens = first.ttft_s, first.cached_tokens
        wire.first.decode_replica = first.decode_replica
    elif isinstance(event, Summary):
        wire = journal_pb2.JournaledEvent(summary=event_to_proto(event).summary)
    else:
        wire = journal_pb2.JournaledEvent(failure=failure_to_proto(event))
    return wire.SerializeToString()


def read_entry(sequence: int, payload: bytes, sealed: bytes) -> JournalEntry | None:
    """The entry with these bytes; None where they cannot be read."""
    try:
        wire = journal_pb2.JournaledEvent.FromString(payload)
        event = _event(wire)
    except (DecodeError, Internal):
        return None
    first = None
    if wire.HasField("first"):
        stages = wire.first
        first = FirstTokenStages(
            stages.queue_s,
            stages.prefill_s,
            stages.ttft_s,
            stages.cached_tokens,
            stages.decode_replica,
        )
    return JournalEntry(sequence, event, first, sealed)


def _event(wire: journal_pb2.JournaledEvent) -> Journaled:
    match wire.WhichOneof("event"):
        case "tokens":
            return tokens_from_proto(wire.tokens)
        case "summary":
            event = event_from_proto(inference_pb2.GenerateEvent(summary=wire.summary))
            assert isinstance(event, Summary)
            return event
        case "failure":
            return error_from_failure(wire.failure)
        case _:
            raise Internal("an entry of a kind that this version does not know")


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
