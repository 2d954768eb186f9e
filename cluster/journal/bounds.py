"""The bytes that resumable streams may take in the journal: of one stream, and of one router."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cluster.config.journal import JournalConfig
from engine.errors import InvalidRequest, Overloaded

# Estimates, each for an entry of its own: its seal, its place in Redis, token id and text.
_TOKEN_BYTES = 64
_LOGPROB_BYTES = 16
_TOP_BYTES = 24
# The names of a stream in Redis, its summary, and what it takes before its first token.
_STREAM_BYTES = 512
_CHOICE_BYTES = 256


@dataclass(frozen=True, slots=True)
class StreamSize:
    """What decides how many bytes a stream may take: its request and its longest answer.

    `request_bytes` are those of the JournaledRequest. `logprobs` is that of the sampling.
    """

    request_bytes: int
    max_tokens: int
    choices: int = 1
    logprobs: int | None = None

    @property
    def bytes(self) -> int:
        """The bytes that the stream takes at most, by estimate."""
        return self.request_bytes + _STREAM_BYTES + self.choices * self._choice_bytes

    @property
    def _choice_bytes(self) -> int:
        token = _TOKEN_BYTES
        if self.logprobs is not None:
            token += _LOGPROB_BYTES + self.logprobs * _TOP_BYTES
        return _CHOICE_BYTES + self.max_tokens * token

    def wrong_field(self, most: int) -> str:
        """The field of the request by which the stream takes more than `most` bytes."""
        if self.request_bytes + _STREAM_BYTES + _CHOICE_BYTES + _TOKEN_BYTES > most:
            return "prompt"
        one = StreamSize(self.request_bytes, self.max_tokens, 1, self.logprobs)
        return "n" if self.choices > 1 and one.bytes <= most else "max_tokens"


class JournalBounds:
    """Counts the bytes of a router's streams until `keep_s` after their end; `now` is monotonic."""

    def __init__(self, config: JournalConfig) -> None:
        self._config = config
        self._running: dict[str, int] = {}
        # Streams that have ended, with the time until when Redis keeps them.
        self._kept: deque[tuple[float, int]] = deque()
        self._used = 0

    def used(self, now: float) -> int:
        """The bytes that are taken now."""
        while self._kept and self._kept[0][0] <= now:
            self._used -= self._kept.popleft()[1]
        return self._used

    def reserve(self, stream_id: str, size: StreamSize, now: float) -> None:
        """Take the bytes of a stream.

        Raises InvalidRequest for a stream that is too large, and Overloaded where there is no room.
        """
        most, need = self._config.stream_bytes, size.bytes
        if need > most:
            field = size.wrong_field(most)
            raise InvalidRequest(
                f"{field}: a resumable request takes at most {most} bytes in the journal, "
                f"this one may take {need}",
                field=field,
            )
        beyond = self.used(now) + need - self._config.total_bytes
        if beyond > 0:
            raise Overloaded(
                "the journal of resumable requests is full",
                retry_after_s=self._free_in_s(beyond, now),
            )
        self.ended(stream_id, now)
        self._running[stream_id] = need
        self._used += need

    def ended(self, stream_id: str, now: float) -> None:
        """Free the bytes of a stream `keep_s` from now. Unknown ids are no error."""
        need = self._running.pop(stream_id, None)
        if need is not None:
            self._kept.append((now + self._config.keep_s, need))

    def drop(self, stream_id: str) -> None:
        """Free the bytes of a stream at once: it never began. Unknown ids are no error."""
        self._used -= self._running.pop(stream_id, 0)

    def _free_in_s(self, wanted: int, now: float) -> float:
        for until_s, size in self._kept:
            wanted -= size
            if wanted <= 0:
                return until_s - now
        # The streams that run now are kept so long at least.
        return self._config.keep_s
