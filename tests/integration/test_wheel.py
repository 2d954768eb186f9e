"""The client's wheel in an environment that has its two dependencies and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from cluster.config.schema import TandemConfig
from tests.integration.local import cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import asyncio, json, sys
from importlib.util import find_spec
import tandem_client
from tandem_client import Client, NotFound, SyncClient, Tokens

absent = ["bench", "cluster", "engine", "models", "protos", "ray", "redis", "torch"]
assert not [name for name in absent if find_spec(name)]
assert not find_spec("google.rpc")
address, greedy = sys.argv[1], {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
with SyncClient(address, retries=1) as client:
    done = client.complete([1, 2, 3], **greedy)
    got = [event for event in client.generate([1, 2, 3], **greedy) if isinstance(event, Tokens)]
    scores = client.score([[1, 2, 3]])
    model = client.model().name
    try:
        client.complete([1], model="other")
    except NotFound as error:
        field = error.field

async def main():
    async with Client([address, "127.0.0.1:1"]) as client:
        return (await client.complete([1, 2, 3], resumable=True, **greedy)).choices[0].tokens

print(json.dumps({
    "version": tandem_client.__version__,
    "whole": [token.token for token in done.choices[0].tokens],
    "streamed": [token for event in got for token in event.ids],
    "resumable": [token.token for token in asyncio.run(main())],
    "scored": len(scores[0].scores.logprobs), "model": model, "field": field,
}))
"""


def built(folder: Path, out: Path) -> zipfile.ZipFile:
    """The wheel of the project in a folder."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=60)
    (wheel,) = out.iterdir()
    return zipfile.ZipFile(wheel)


def top(wheel: zipfile.ZipFile) -> set[str]:
    names = {name.split("/")[0] for name in wheel.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def described(wheel: zipfile.ZipFile) -> Message:
    (path,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(path))


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory) -> zipfile.ZipFile:
    return built(ROOT / "tandem_client", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(tmp_path_factory, client_wheel) -> Path:
    """The Python of an environment of its own, with files of the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    client_wheel.extractall(site)
    for name in ("grpcio", "protobuf", "typing_extensions"):
        for file in metadata.files(name) or ():
            if ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).symlink_to(file.locate())
    return folder / "bin" / "python"


def test_the_client_s_wheel_has_one_name_and_two_dependencies(client_wheel):
    assert top(client_wheel) == {"tandem_client"}
    assert "tandem_client/py.typed" in client_wheel.namelist()
    needs = described(client_wheel).get_all("Requires-Dist")
    assert sorted(need.split("<")[0].split(">")[0] for need in needs) == ["grpcio", "protobuf"]


def test_the_server_s_wheel_needs_the_client_s_of_its_version(client_wheel, tmp_path):
    server = built(ROOT, tmp_path)
    assert "tandem_client" not in top(server)
    version = described(client_wheel)["Version"]
    assert described(server)["Version"] == version
    assert f"tandem-client=={version}" in described(server).get_all("Requires-Dist")
    assert "Private :: Do Not Upload" in described(server).get_all("Classifier")


async def test_the_wheel_alone_talks_to_a_router(config: TandemConfig, python: Path, tmp_path):
    async with cluster(config) as local:
        process = await asyncio.create_subprocess_exec(
            str(python), "-c", SCRIPT, local.router.grpc_address, cwd=tmp_path, env={},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()
        here = await local.client.complete(
            [1, 2, 3], max_tokens=8, temperature=0.0, ignore_eos=True
        )
    tokens = [token.token for token in here.choices[0].tokens]
    found = json.loads(output)
    assert [found[name] for name in ("whole", "streamed", "resumable")] == [tokens] * 3
    assert (found["scored"], found["field"]) == (2, "model")
