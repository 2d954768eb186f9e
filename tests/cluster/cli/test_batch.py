"""`tandem batch` as a user runs it, killed and started again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest

from cluster.cli.main import main
from engine.errors import InvalidRequest
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

LINES = 30


@pytest.fixture
def files(tmp_path):
    source = tmp_path / "in.jsonl"
    with source.open("w") as lines:
        for number in range(LINES):
            body = {"prompt": f"text {number}", "max_tokens": 2}
            line = {"custom_id": f"r-{number}", "url": "/v1/completions", "body": body}
            lines.write(json.dumps(line | {"method": "POST"}) + "\n")
    return source, tmp_path / "out.jsonl"


def command(files, port, *more):
    return ["batch", str(files[0]), str(files[1]), "--url", f"http://127.0.0.1:{port}", *more]


def written(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_a_batch_that_is_killed_goes_on_where_it_was(files, capsys):
    generator = ScriptedGenerator(pause_s=0.02)
    async with front_end(generator) as port:
        arguments = command(files, port, "--concurrency", "2")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cluster.cli.main", *arguments, stderr=asyncio.subprocess.PIPE
        )
        await eventually(lambda: len(generator.finished) >= 5, 60)
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        # Who was killed abandoned what it had asked for.
        await eventually(lambda: not generator.running)
        done = {one["custom_id"] for one in written(files[1])}
        assert 0 < len(done) < LINES
        with files[1].open("ab") as half:
            half.write(b'{"id": "batch_req_1", "custom_id": "r-2')
        before = len(generator.started)
        assert await asyncio.to_thread(main, arguments) == 0
        assert len(generator.started) - before == LINES - len(done)
        assert f"{LINES - len(done)} done, 0 failed, {len(done)} done before" in (
            capsys.readouterr().err
        )
        assert sorted(one["custom_id"] for one in written(files[1])) == sorted(
            f"r-{number}" for number in range(LINES)
        )
        assert {request.endpoint for request in generator.requests} == {"report"}
        assert await asyncio.to_thread(main, arguments) == 0
        assert len(generator.started) - before == LINES - len(done)


async def test_failed_lines_are_done_again(files, capsys):
    generator = ScriptedGenerator(error=InvalidRequest("not today"))
    async with front_end(generator) as port:
        assert await asyncio.to_thread(main, command(files, port)) == 1
        assert {one["response"]["status_code"] for one in written(files[1])} == {400}
        generator.error = None
        with files[0].open("a") as source:
            source.write("nonsense\n")
        assert await asyncio.to_thread(main, command(files, port)) == 1
        assert f"{LINES} done, 1 failed" in capsys.readouterr().err
    results = written(files[1])
    assert len(results) == LINES + 1
    assert sum(one["error"] is None for one in results) == LINES


async def test_an_error_before_a_batch_begins_is_one_line(files, capsys):
    async with front_end(ScriptedGenerator()) as port:
        for arguments, reason in (
            (command(files, port, "--endpoint", "nothing"), "no endpoint 'nothing'"),
            (command(files, port, "--concurrency", "0"), "--concurrency must be"),
            (command((files[0], files[0]), port), "is the input"),
            (command((files[1], files[1]), port), "no such file"),
            (command(files, 9), "127.0.0.1:9"),
        ):
            assert await asyncio.to_thread(main, arguments) == 2
            error = capsys.readouterr().err
            assert reason in error and error.count("\n") == 1
        assert not files[1].exists()
