"""Questions to the other routers of the cluster, each with a deadline.

The directory has the address at which each router answers. A question goes over a proved connection
(decision 37), so that only members of the cluster ask and answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from cluster.api.error_mapping import error_from_failure
from cluster.api.event_streams import end
from cluster.replica_record import ReplicaRecord
from engine.errors import TandemError, Unavailable
from protos.peer_pb2 import PeerAnswer, PeerQuestion
from protos.wire.client import Connector
from protos.wire.streams import FrameStream

# Promise: how long a router that does not answer can delay anybody.
ASK_S = 1.0
# Bounds: a question, an answer, and the routers that are asked.
MOST_QUESTION_BYTES = 1 << 16
MOST_ANSWER_BYTES = 32 << 20
MOST_PEERS = 32
TOO_OLD = "its version answers no other router"
TOO_MANY = f"more than {MOST_PEERS} other routers live"


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """The answers by router, and the routers that gave none, with the reason."""

    found: Mapping[str, PeerAnswer] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class PeerLine:
    """A connection to another router, for one question at a time."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream

    async def ask(self, question: PeerQuestion) -> PeerAnswer:
        """The answer, however long it takes; see `deadline`.

        Raises a TandemError: that of the router, or Unavailable.
        """
        try:
            await self._stream.write(question.SerializeToString())
            answer = PeerAnswer.FromString(await self._stream.read())
        except DecodeError:
            raise Unavailable("its answer cannot be read") from None
        if answer.HasField("failure"):
            raise error_from_failure(answer.failure)
        if answer.WhichOneof("answer") != question.WhichOneof("question"):
            raise Unavailable("it does not know the question")
        return answer


class Peers:
    """The other routers of the cluster. `members` reads the directory's copy; `name` is this one's.

    The connector proves that this router belongs to the cluster.
    """

    def __init__(
        self, name: str, members: Callable[[], list[ReplicaRecord]], connector: Connector
    ) -> None:
        self.name = name
        self._members = members
        self._connector = connector

    def others(self) -> list[ReplicaRecord]:
        """The records of the other routers that live, ordered by id."""
        return [one for one in self._members() if one.role == "router" and one.id != self.name]

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
            yield PeerLine(stream)
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
        found: dict[str, PeerAnswer] = {}
        silent = {one.id: TOO_MANY for one in others[MOST_PEERS:]}
        asking = {
            asyncio.create_task(self._ask(one, question, timeout_s)): one.id
            for one in others[:MOST_PEERS]
        }
        waiting = set(asking)
        try:
            while waiting and not any(map(enough, found.values())):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        found[asking[task]] = task.result()
                    except TandemError as error:
                        silent[asking[task]] = error.message
        finally:
            await end(list(waiting))
        return PeerAnswers(found, silent)

    async def _ask(
        self, record: ReplicaRecord, question: PeerQuestion, timeout_s: float
    ) -> PeerAnswer:
        async with deadline(timeout_s), self.line(record, timeout_s) as line:
            return await line.ask(question)


@asynccontextmanager
async def deadline(timeout_s: float = ASK_S) -> AsyncIterator[None]:
    """Ends the block after so long; raises Unavailable then."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise Unavailable(f"it did not answer for {timeout_s:g} s") from None
