"""Questions to the other routers of the cluster, each with a deadline.

The directory has the address at which each router answers. A question goes over a proved connection
(decision 37), so that only members of the cluster ask and answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from cluster.api.error_mapping import error_from_failure
from cluster.api.event_streams import end
from cluster.display_text import long_time
from cluster.replica_record import ReplicaRecord
from cluster.router.peers.clocks import ClockDifference
from cluster.telemetry.requests.row_clock import row_clock
from engine.errors import TandemError, Unavailable
from protos.peer_pb2 import PeerAnswer, PeerQuestion
from protos.status import one_line
from protos.wire.client import Connector
from protos.wire.streams import FrameStream

# Promise: how long a router that does not answer can delay anybody.
ASK_S = 1.0
# Bounds: a question, an answer, and the routers that are asked.
MOST_QUESTION_BYTES = 1 << 16
MOST_ANSWER_BYTES = 8 << 20
MOST_PEERS = 32
# Bounds: the routers that are remembered after they left, and for how long.
_MOST_GONE = 16
_GONE_S = 3600.0
# A larger answer is written and read on a thread, because tokens wait meanwhile.
SMALL_BYTES = 1 << 16
TOO_OLD = "its version answers no other router"
TOO_MANY = f"more than {MOST_PEERS} other routers live"


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """The answers by router, and the routers that gave none, with the reason.

    `clocks` are those of the routers that answered; None for a version that tells no time.
    """

    found: Mapping[str, PeerAnswer] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    clocks: Mapping[str, ClockDifference | None] = field(default_factory=dict)


class PeerLine:
    """A connection to another router, for one question at a time.

    `clock` is the difference of its clock to `now`, by the last answer.
    """

    def __init__(self, stream: FrameStream, now: Callable[[], float] = row_clock) -> None:
        self.clock: ClockDifference | None = None
        self._stream = stream
        self._now = now

    async def ask(self, question: PeerQuestion) -> PeerAnswer:
        """The answer, however long it takes; see `deadline`.

        Raises a TandemError: that of the router, or Unavailable.
        """
        sent_at = self._now()
        await self._stream.write(question.SerializeToString())
        data = await self._stream.read()
        came_at = self._now()
        try:
            answer = await _read(data)
        except DecodeError:
            raise Unavailable("its answer cannot be read") from None
        if answer.HasField("failure"):
            raise error_from_failure(answer.failure)
        self.clock = ClockDifference.of(sent_at, answer.asked_at, answer.answered_at, came_at)
        if answer.WhichOneof("answer") != question.WhichOneof("question"):
            raise Unavailable("it does not know the question")
        return answer


class Peers:
    """The other routers of the cluster. `members` reads the directory's copy; `name` is this one's.

    The connector proves that this router belongs to the cluster. `now` is the clock of its rows.
    """

    def __init__(
        self,
        name: str,
        members: Callable[[], list[ReplicaRecord]],
        connector: Connector,
        now: Callable[[], float] = row_clock,
    ) -> None:
        self.name = name
        self.now = now
        self._members = members
        self._connector = connector
        # Until when each was there, by the clock of rows.
        self._gone: dict[str, float] = {}

    def others(self) -> list[ReplicaRecord]:
        """The records of the other routers that live, ordered by id."""
        return [one for one in self._members() if one.role == "router" and one.id != self.name]

    def gone(self, lost: Iterable[ReplicaRecord]) -> None:
        """Remember the routers among these members, which left or died."""
        for one in lost:
            if one.role == "router" and one.id != self.name:
                self._gone[one.id] = self.now()
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def gone_since(self, at: float) -> dict[str, str]:
        """The routers that were there at that time (by the clock of rows), and when each left."""
        now, here = self.now(), {one.id for one in self.others()}
        return {
            name: f"it left {long_time(now - gone_at)} ago, and its rows are gone"
            for name, gone_at in self._gone.items()
            if name not in here and gone_at >= max(at, now - _GONE_S)
        }

    @asynccontextmanager
    async def line(
        self, record: ReplicaRecord, timeout_s: float = ASK_S
    ) -> AsyncIterator[PeerLine]:
        """A connection to that router while the block runs. Raises Unavailable."""
        if not record.peer:
            raise Unavailable(TOO_OLD)
        stream = FrameStream(MOST_ANSWER_BYTES)
        try:
            await self._connector.connect(record.peer, "peer", stream.wire, timeout_s)
            yield PeerLine(stream, self.now)
        finally:
            stream.close()

    async def ask_all(
        self,
        question: PeerQuestion,
        enough: Callable[[PeerAnswer], bool] = lambda answer: False,
        timeout_s: float = ASK_S,
    ) -> PeerAnswers:
        """Ask all other routers at one time; the first answer that is `enough` ends the wait."""
        others = self.others()
        questions = {one.id: question for one in others[:MOST_PEERS]}
        silent = dict.fromkeys((one.id for one in others[MOST_PEERS:]), TOO_MANY)
        asked = await self.ask_each(questions, enough, timeout_s)
        return replace(asked, silent=asked.silent | silent)

    async def ask_each(
        self,
        questions: Mapping[str, PeerQuestion],
        enough: Callable[[PeerAnswer], bool] = lambda answer: False,
        timeout_s: float = ASK_S,
    ) -> PeerAnswers:
        """Ask each of these routers its question, as `ask_all` does."""
        records = {one.id: one for one in self.others()}
        found: dict[str, PeerAnswer] = {}
        clocks: dict[str, ClockDifference | None] = {}
        silent = dict.fromkeys(questions.keys() - records.keys(), "it left just now")
        asking = {
            asyncio.create_task(self._ask(records[name], question, timeout_s)): name
            for name, question in questions.items()
            if name in records
        }
        waiting = set(asking)
        try:
            while waiting and not any(map(enough, found.values())):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = asking[task]
                    try:
                        found[name], clocks[name] = task.result()
                    except TandemError as error:
                        silent[name] = one_line(error.message)
        finally:
            await end(list(waiting))
        return PeerAnswers(found, silent, clocks)

    async def _ask(
        self, record: ReplicaRecord, question: PeerQuestion, timeout_s: float
    ) -> tuple[PeerAnswer, ClockDifference | None]:
        async with deadline(timeout_s), self.line(record, timeout_s) as line:
            return await line.ask(question), line.clock


@asynccontextmanager
async def deadline(timeout_s: float = ASK_S) -> AsyncIterator[None]:
    """Ends the block after so long; raises Unavailable then."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unavailable(f"it did not answer for {timeout_s:g} s") from None


async def _read(data: bytes) -> PeerAnswer:
    """Raises DecodeError."""
    if len(data) <= SMALL_BYTES:
        return PeerAnswer.FromString(data)
    return await asyncio.to_thread(PeerAnswer.FromString, data)
