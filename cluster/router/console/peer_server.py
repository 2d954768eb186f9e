"""Answers the questions of other routers, for this router alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from cluster.console.news_feed import NewsFeed
from cluster.router.peers.peer_calls import MOST_ANSWER_BYTES, SMALL_BYTES, deadline
from cluster.router.rows.gathered_rows import GatheredRows
from cluster.telemetry.requests.row_clock import row_clock
from engine.errors import Internal, InvalidRequest, TandemError
from protos.peer_pb2 import PeerAnswer, PeerQuestion, StopAnswer
from protos.status import failure_to_proto
from protos.wire.streams import FrameStream

log = logging.getLogger(__name__)

# Bound: how long a router may ask nothing, and how long it may take an answer.
IDLE_S = 30.0
# Ends a request of this id and tenant for that operator, and says whether it ran here.
StopHere = Callable[[str, str, str], bool]


class PeerServer:
    """Answers from the news and the rows of this router, and stops its requests."""

    def __init__(
        self,
        news: NewsFeed,
        rows: GatheredRows,
        stop_here: StopHere,
        now: Callable[[], float] = row_clock,
    ) -> None:
        self._news = news
        self._rows = rows
        self._stop_here = stop_here
        self._now = now

    async def serve(self, stream: FrameStream) -> None:
        """Answer one question after the other until the other router hangs up, or is idle."""
        while True:
            async with deadline(IDLE_S):
                data = await stream.read()
            asked_at = self._now()
            answer = await self._answered(data)
            answer.asked_at, answer.answered_at = asked_at, self._now()
            if answer.ByteSize() <= SMALL_BYTES:
                written = _written(answer)
            else:
                written = await asyncio.to_thread(_written, answer)
            async with deadline(IDLE_S):
                await stream.write(written)

    async def _answered(self, data: bytes) -> PeerAnswer:
        try:
            return await self._answer(PeerQuestion.FromString(data))
        except DecodeError:
            return _failed(InvalidRequest("a question that cannot be read"))
        except TandemError as error:
            return _failed(error)
        except Exception as error:
            log.exception("a fault in the answer to another router")
            return _failed(Internal(f"internal error: {type(error).__name__}"))

    async def _answer(self, question: PeerQuestion) -> PeerAnswer:
        kind = question.WhichOneof("question")
        if kind == "news":
            news = await self._news.news(question.news.counts_after, question.news.rows_after)
            return PeerAnswer(news=news.to_json())
        if kind == "rows":
            return PeerAnswer(rows=await self._rows.answer(question.rows))
        if kind == "stop":
            stop = question.stop
            found = self._stop_here(stop.request_id, stop.tenant, stop.operator)
            return PeerAnswer(stop=StopAnswer(found=found))
        if kind == "blockers":
            return PeerAnswer(blockers=await self._rows.blockers.answer(question.blockers))
        raise InvalidRequest("its version does not know the question")


def _written(answer: PeerAnswer) -> bytes:
    written = answer.SerializeToString()
    if len(written) <= MOST_ANSWER_BYTES:
        return written
    error = InvalidRequest("the answer is too large: ask for fewer requests")
    return _failed(error).SerializeToString()


def _failed(error: TandemError) -> PeerAnswer:
    return PeerAnswer(failure=failure_to_proto(error))
