"""Entries of the journal as bytes, and back: tokens, the summary, or the failure of a stream.

Nearly all entries are tokens alone. They have a form of their own, which takes a tenth of the time
of protobuf. All others are a JournaledEvent. No protobuf message begins with a zero, one or two.

    1 (1 byte) | choice (1) | finish reason (1) | index (4) | ms (4) | the id (4) | text
    2 (1 byte) | choice (1) | finish reason (1) | index (4) | ms (4) | ids (4) | the ids (4 each)
               | text
    0 (1 byte) | choice (1) | finish reason (1) | index (4) | ids (4) | the ids (4 each) | text

Numbers are big-endian, and the text is UTF-8. The ms count from the arrival of the request to the
entry: another router that goes on with the stream learns when it stopped. Routers of an older
version, which tell no ms, write entries that begin with a zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from cluster.api import Event, GenerateRequest, Started, Summary, Tokens
from cluster.api.error_mapping import error_from_failure
from cluster.api.proto_convert import event_to_proto, request_to_proto
from engine.errors import Internal, TandemError
from engine.types.sequence import FinishReason
from protos import journal_pb2
from protos.convert import tokens_to_proto, valid_text
from protos.status import failure_to_proto
from tandem_client.messages import event_from_proto, tokens_from_proto
from tandem_client.protos import inference_pb2

# What an entry holds. Other events are not journaled.
JOURNALED = (Tokens, Summary, TandemError)
Journaled = Tokens | Summary | TandemError
_OLDER, _ONE, _SEVERAL = 0, 1, 2
_HEAD = struct.Struct(">BBBIII")
_OLDER_HEAD = struct.Struct(">BBBII")
_MOST_MS = 2**32 - 1
_REASONS: tuple[FinishReason | None, ...] = (None, "stop", "length")
_REASON_CODES = {reason: code for code, reason in enumerate(_REASONS)}


@dataclass(frozen=True, slots=True)
class FirstTokenStages:
    """The stages of a choice up to its first token, in seconds, for the summary.

    `decode_replica` computes the choice, and has its KV. `prefill_replica` computed the prompt, and
    was asked at `sent_s`.
    """

    queue_s: float
    prefill_s: float
    ttft_s: float
    cached_tokens: int = 0
    decode_replica: str = ""
    prefill_replica: str = ""
    prefill_share_s: float = 0.0
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry as it was read. `sequence` counts from 1; `sealed` are its bytes in Redis.

    `first` stands with the first tokens of a choice. `after_s` goes from the arrival of the request
    to the entry, in whole ms.
    """

    sequence: int
    event: Journaled
    first: FirstTokenStages | None
    sealed: bytes
    after_s: float = 0.0

    @property
    def last(self) -> bool:
        """Whether the stream has ended with this entry."""
        return not isinstance(self.event, Tokens)


def journaled_request(
    request: GenerateRequest,
    started: Started,
    arrived_at: float,
    model_identity: str,
    admitted_s: float = 0.0,
) -> journal_pb2.JournaledRequest:
    """The record of a prepared request: with token ids, a seed and complete sampling.

    It arrived at `arrived_at`, in seconds since the epoch, and was admitted `admitted_s` later.
    `model_identity` names the weights.
    """
    return journal_pb2.JournaledRequest(
        request=request_to_proto(request),
        started=event_to_proto(started).started,
        note=request.note,
        arrived_at=arrived_at,
        model_identity=model_identity,
        form=started.form,
        admitted_s=admitted_s,
        x_request_id=request.trace.request_id,
        traceparent=request.trace.parent,
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


def entry_bytes(event: Journaled, first: FirstTokenStages | None, after_s: float = 0.0) -> bytes:
    """The event of an entry as bytes, without a seal; `after_s` since the request arrived."""
    after_ms = min(max(0, round(1000 * after_s)), _MOST_MS)
    if isinstance(event, Tokens):
        if first is None and not event.sampled:
            return _packed(event, after_ms)
        run = tokens_to_proto(
            event.choice, event.index, event.ids, event.text, event.finish_reason, event.sampled
        )
        wire = journal_pb2.JournaledEvent(tokens=run)
        if first is not None:
            wire.first.queue_s, wire.first.prefill_s = first.queue_s, first.prefill_s
            wire.first.ttft_s, wire.first.cached_tokens = first.ttft_s, first.cached_tokens
            wire.first.decode_replica = first.decode_replica
            wire.first.prefill_share_s = first.prefill_share_s
            wire.first.prefill_replica = first.prefill_replica
            wire.first.sent_s = first.sent_s
    elif isinstance(event, Summary):
        wire = journal_pb2.JournaledEvent(summary=event_to_proto(event).summary)
    else:
        wire = journal_pb2.JournaledEvent(failure=failure_to_proto(event))
    wire.after_ms = after_ms
    return wire.SerializeToString()


def read_entry(sequence: int, payload: bytes, sealed: bytes) -> JournalEntry | None:
    """The entry with these bytes; None where they cannot be read."""
    try:
        if payload and payload[0] in (_OLDER, _ONE, _SEVERAL):
            tokens, after_ms = _unpacked(payload)
            return JournalEntry(sequence, tokens, None, sealed, after_ms / 1000)
        wire = journal_pb2.JournaledEvent.FromString(payload)
        event = _event(wire)
    except (DecodeError, Internal, struct.error, IndexError, UnicodeDecodeError):
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
            stages.prefill_replica,
            stages.prefill_share_s,
            stages.sent_s,
        )
    return JournalEntry(sequence, event, first, sealed, wire.after_ms / 1000)


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


def _packed(event: Tokens, after_ms: int) -> bytes:
    """Tokens without log-probabilities in their own form."""
    ids, reason = event.ids, _REASON_CODES[event.finish_reason]
    try:
        text = event.text.encode()
    except UnicodeEncodeError:
        text = valid_text(event.text).encode()
    if len(ids) == 1:
        return _HEAD.pack(_ONE, event.choice, reason, event.index, after_ms, ids[0]) + text
    head = _HEAD.pack(_SEVERAL, event.choice, reason, event.index, after_ms, len(ids))
    return head + struct.pack(f">{len(ids)}I", *ids) + text


def _unpacked(payload: bytes) -> tuple[Tokens, int]:
    """Tokens in their own form, and their ms; struct.error, IndexError or UnicodeDecodeError."""
    kind, head, after_ms = payload[0], _HEAD, 0
    if kind == _OLDER:
        head = _OLDER_HEAD
        _, choice, reason, index, last = head.unpack_from(payload)
    else:
        _, choice, reason, index, after_ms, last = head.unpack_from(payload)
    count = 0 if kind == _ONE else last
    ids = (last,) if kind == _ONE else struct.unpack_from(f">{count}I", payload, head.size)
    text = payload[head.size + 4 * count :].decode()
    return Tokens(choice, index, ids, text, _REASONS[reason]), after_ms
