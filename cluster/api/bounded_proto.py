"""Counts the fields of a large protobuf message before it is parsed.

An empty submessage has two bytes on the wire and some sixty in memory: 4 MiB of them take 112 MiB.
The count takes one step for each field, and lists of numbers are counted as a whole.
"""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cluster.api.limits import MAX_MESSAGE_FIELDS, MAX_PROMPT_TOKENS
from engine.errors import InvalidRequest

# Bound: a message is small enough to be parsed uncounted.
SMALL_BYTES = 16 * 1024
# Bound: how deep messages are looked into; the parser refuses deeper messages itself.
_DEEPEST = 100
_LONGEST_VARINT = 10
# The bytes of a packed number but its last: without them one byte is left of each number.
_NOT_LAST = bytes(range(128, 256))
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_LENGTH_DELIMITED = 2


def check_fields(kind: type[Message], message: bytes) -> None:
    """Raise InvalidRequest where a message has too many fields or token ids.

    The error names the field of the whole message in which the bound was exceeded. The parser
    refuses bytes that are no message, not this check.
    """
    if len(message) > SMALL_BYTES:
        _FieldCount(message).walk(cast("Descriptor", kind.DESCRIPTOR), 0, len(message))


class _FieldCount:
    """The fields and packed numbers of one message so far."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._fields = 0
        self._numbers = 0
        self._within: str | None = None

    def walk(self, kind: Descriptor, at: int, end: int, deep: int = 0) -> None:
        """Count the fields between two places; ends where the bytes are no fields."""
        known = kind.fields_by_number
        while at < end:
            tag, at = self._varint(at, end)
            field = known.get(tag >> 3)
            if not deep:
                self._within = None if field is None else field.name
            self._fields += 1
            if self._fields > MAX_MESSAGE_FIELDS:
                what = f"the message has more than {MAX_MESSAGE_FIELDS} fields"
                raise InvalidRequest(f"{what}; are its token ids packed?", field=self._within)
            if tag & 7 == _LENGTH_DELIMITED:
                size, at = self._varint(at, end)
                if field is not None:
                    self._look_into(field, at, min(end, at + size), deep)
                at += size
            elif tag & 7 == 0:
                _, at = self._varint(at, end)
            else:  # the begin and the end of a group have no bytes of their own
                at += _FIXED_BYTES.get(tag & 7, 0)

    def _look_into(self, field: FieldDescriptor, at: int, end: int, deep: int) -> None:
        if field.message_type is not None:
            if deep < _DEEPEST:
                self.walk(field.message_type, at, end, deep + 1)
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            self._numbers += len(self._message[at:end].translate(None, _NOT_LAST))
            if self._numbers > MAX_PROMPT_TOKENS:
                what = f"the message has more than {MAX_PROMPT_TOKENS} token ids"
                raise InvalidRequest(what, field=self._within)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and the place behind it; the end where there is none."""
        found = 0
        for index in range(min(_LONGEST_VARINT, end - at)):
            byte = self._message[at + index]
            found |= (byte & 127) << (7 * index)
            if byte < 128:
                return found, at + index + 1
        return 0, end
