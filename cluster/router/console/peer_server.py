"""Answers the questions of other routers, for this router alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from cluster.console.news_feed import NewsFeed
from cluster.router.peers.peer_calls import MOST_ANSWER_BYTES
from cluster.router.rows.gathered_rows import GatheredRows
from engine.errors import Internal, InvalidRequest, TandemError
from protos.peer_pb2 import PeerAnswer, PeerQuestion, StopAnswer
from protos.status import failure_to_proto
from protos.wire.streams import FrameStream

log = logging.getLogger(__name__)

# Ends a request of this id and tenant for that operator, and says whether it ran here.
StopHere = Callable[[str, str, str], bool]


class PeerServer:
    """Answers from the news and the rows of this router, and stops its requests."""

    def __init__(self, news: NewsFeed, rows: GatheredRows, stop_here: StopHere) -> None:
        self._news = news
        self._rows = rows
        self._stop_here = stop_here

    async def serve(self, stream: FrameStream) -> None:
        """Answer one question after the other until the other router hangs up."""
        while True:
            answer = await self._answered(await stream.read())
            written = answer.SerializeToString()
            if len(written) > MOST_ANSWER_BYTES:
                error = InvalidRequest("the answer is too large: ask for fewer requests")
                written = _failed(error).SerializeToString()
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
        raise InvalidRequest("this router does not know the question")


def _failed(error: TandemError) -> PeerAnswer:
    return PeerAnswer(failure=failure_to_proto(error))
