"""A run of a batch against a scripted server: one result for each line, whatever comes between."""

import asyncio
import json
from collections import Counter

import pytest

from cluster.batch.concurrency import BatchConcurrency
from cluster.batch.http_client import BatchResponse, BatchServer
from cluster.batch.lines import BadLine, BatchLine, BatchReply
from cluster.batch.run import BatchRun, endpoint_for
from engine.errors import ConfigError, NotFound, Unauthenticated, Unavailable
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator

OK = BatchResponse(
    BatchReply(200, "r", {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}), None
)
FULL = BatchResponse(BatchReply(429, "r", {"error": {}}), 7.5)


class Scripted:
    """Answers by the script of a request's custom text, then well; counts what is under way."""

    def __init__(self, script=None):
        self.script = {name: list(answers) for name, answers in (script or {}).items()}
        self.asked: Counter[str] = Counter()
        self.bodies = []
        self.now = self.most = 0

    async def post(self, path, body):
        name = body["name"]
        self.asked[name] += 1
        self.bodies.append(body)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        answers = self.script.get(name)
        answer = answers.pop(0) if answers else OK
        if isinstance(answer, Exception):
            raise answer
        return answer


class Waits:
    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


def work(*names):
    return [BatchLine(name, "/v1/completions", {"name": name}) for name in names]


async def run(server, lines, *, most=8, endpoint="batch"):
    written, waits = [], Waits()
    batch = BatchRun(server, written.append, BatchConcurrency(most), endpoint, sleep=waits)
    await batch.run(lines, lambda line: None)
    return batch.progress, [json.loads(line) for line in written], waits.seconds


async def test_every_line_gets_one_result():
    names = [str(number) for number in range(50)]
    server = Scripted()
    progress, written, waits = await run(server, [*work(*names), BadLine("bad", "line 51: no")])
    assert sorted(line["custom_id"] for line in written) == sorted([*names, "bad"])
    assert (progress.succeeded, progress.failed, waits) == (50, 1, [])
    assert (progress.prompt_tokens, progress.completion_tokens) == (150, 100)
    assert server.most <= 8
    assert all(body["endpoint"] == "batch" for body in server.bodies)


async def test_a_line_that_names_its_endpoint_keeps_it():
    server = Scripted()
    await run(server, [BatchLine("a", "/v1/completions", {"name": "a", "endpoint": "chat"})])
    assert server.bodies == [{"name": "a", "endpoint": "chat"}]


async def test_refused_lines_come_back_when_they_are_told_to():
    server = Scripted(
        {"a": [FULL] * 9, "b": [BatchResponse(FULL.reply, None), BatchResponse(FULL.reply, 1e6)]}
    )
    progress, written, waits = await run(server, work("a", "b", "c"))
    assert {line["response"]["status_code"] for line in written} == {200}
    assert progress.refused == 11
    assert Counter(waits) == Counter({7.5: 9, 1.0: 1, 60.0: 1})


async def test_passing_failures_are_tried_again_and_lasting_ones_written():
    down = BatchResponse(BatchReply(503, "r", {"error": {}}), 2.0)
    bad = BatchResponse(BatchReply(400, "r", {"error": {"message": "no"}}), None)
    server = Scripted({"a": [down, Unavailable("cut")], "b": [bad], "c": [down] * 9})
    progress, written, waits = await run(server, work("a", "b", "c"))
    statuses = {line["custom_id"]: line["response"]["status_code"] for line in written}
    assert statuses == {"a": 200, "b": 400, "c": 503}
    assert server.asked == {"a": 3, "b": 1, "c": 5}
    assert (progress.succeeded, progress.failed) == (1, 2)
    assert max(waits) == 8.0


async def test_a_batch_says_how_far_it_is_at_its_begin_and_its_end():
    said = []
    server = Scripted({"a": [FULL]})
    batch = BatchRun(server, lambda line: None, BatchConcurrency(8), "batch", sleep=Waits())
    await batch.run([*work(*"abc"), BadLine("bad", "no")], said.append)
    assert said[0].endswith(" at a time, 0 + 0 tokens")
    assert said[-1] == "1 failed, 3 at a time, 1 sent again, 9 + 6 tokens"


async def test_a_lost_server_and_an_unknown_key_end_the_run():
    gone = Scripted({"a": [Unavailable("gone")] * 9})
    with pytest.raises(Unavailable, match="gone"):
        await run(gone, work("a", "b"))
    unknown = BatchResponse(BatchReply(401, "r", {"error": {"message": "unknown key"}}), None)
    with pytest.raises(Unauthenticated, match="unknown key"):
        await run(Scripted({"a": [unknown]}), work("a"))


def models(endpoints, lanes):
    return {"data": [{"endpoints": endpoints, "lanes": lanes}]}


def test_the_endpoint_is_the_first_of_the_lane_batch_or_the_one_that_is_named():
    known = models(["chat", "night"], {"chat": "interactive", "night": "batch"})
    assert endpoint_for(known, None) == "night"
    assert endpoint_for(known, "chat") == "chat"
    with pytest.raises(NotFound, match="no endpoint 'day'; its endpoints: chat, night"):
        endpoint_for(known, "day")
    for found in (models(["chat"], {"chat": "interactive"}), {"data": [{}]}, {}, "text", None):
        with pytest.raises(NotFound, match="no endpoint of the lane batch"):
            endpoint_for(found, None)


async def test_answers_over_http_are_read_whole():
    async with front_end(ScriptedGenerator()) as port:
        server = BatchServer.at(f"http://127.0.0.1:{port}/v1", None)
        answer = await server.post("/v1/completions", {"prompt": "hello", "max_tokens": 2})
        assert answer.reply.status == 200
        assert answer.reply.request_id
        assert answer.reply.body["choices"][0]["text"] == "one two"
        wrong = await server.post("/v1/completions", {"prompt": "é", "nothing": 1})
        assert wrong.reply.status == 400
        assert (await server.get("/metrics")).reply.body.startswith("tandem_up")
    with pytest.raises(Unavailable):
        await server.get("/healthz")
    with pytest.raises(ConfigError, match="is no http"):
        BatchServer.at("localhost:8000", None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "IncompleteRead"),
        (b"\0\0\x18\x04\0\0\0\0\0", "gRPC port is not its HTTP port"),
    ],
)
async def test_an_incomplete_answer_is_no_answer(data, reason):
    async def cut(reader, writer):
        await reader.readline()
        writer.write(data)
        writer.close()

    listening = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=reason):
            await BatchServer.at(f"http://127.0.0.1:{port}", None).get("/v1/models")
