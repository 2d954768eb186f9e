"""What another user of a host tries at a server there. It runs as a process of its own, as root.

It imports as root and then gives up every right, so that the user needs to read neither the code
nor the interpreter. It reads its targets as JSON, and prints a list of JSON objects, each a `Try`.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - imported late, it could not be read
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import get_args

import grpc

from protos import router_pb2
from protos.wire.handshake import PROOF_BYTES, Purpose, hello, new_nonce
from tandem_client.protos import inference_pb2

USER = 65534
TIMEOUT_S = 4.0
_MOST_BYTES = 1 << 16
_AT_ONCE = 8
_COMPLETION = b'{"model": "tiny", "prompt": [1, 2], "max_tokens": 1}'
_HTTP = (
    ("GET", "/", b""),
    ("GET", "/healthz", b""),
    ("GET", "/metrics", b""),
    ("GET", "/v1/models", b""),
    ("POST", "/v1/completions", _COMPLETION),
    ("GET", "/api/version", b""),
    ("GET", "/nodes?view=summary", b""),
    ("GET", "/api/jobs/", b""),
    ("POST", "/api/jobs/", b'{"entrypoint": "true"}'),
    ("GET", "/api/serve/applications/", b""),
    ("PUT", "/api/serve/applications/", b'{"applications": []}'),
)
_ADMIN = "tandem.internal.v1.Admin"
_RPC = {
    f"{_ADMIN}/Status": router_pb2.StatusRequest(),
    f"{_ADMIN}/Stop": router_pb2.StopRequest(),
    f"{_ADMIN}/GiveRole": router_pb2.GiveRoleRequest(replica="any", role="both"),
    f"{_ADMIN}/Rollout": router_pb2.RolloutRequest(configuration="{}", weaken_security=True),
    "tandem.v1.Inference/GetModel": inference_pb2.GetModelRequest(),
    "tandem.v1.Inference/Generate": inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=[1, 2]),
        sampling=inference_pb2.Sampling(max_tokens=1),
    ),
    # All fields of these are optional, so that zero bytes are a valid request.
    "ray.rpc.JobInfoGcsService/GetAllJobInfo": None,
    "ray.rpc.JobInfoGcsService/GetNextJobID": None,
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo": None,
    "ray.rpc.InternalKVGcsService/InternalKVKeys": None,
    "ray.rpc.InternalKVGcsService/InternalKVPut": None,
    "ray.rpc.ActorInfoGcsService/GetAllActorInfo": None,
    "ray.rpc.NodeManagerService/GetNodeStats": None,
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats": None,
    "ray.rpc.CoreWorkerService/PushTask": None,
    "ray.serve.ASGIService/HandleRequest": None,
    "ray.serve.ASGIService/HandleRequestStreaming": None,
}


@dataclass(frozen=True)
class Targets:
    """What the server has: TCP `ports` as host:port, Unix `sockets`, `files`, `processes`."""

    ports: list[str]
    sockets: list[str]
    files: list[str]
    processes: list[int]


@dataclass(frozen=True)
class Try:
    """`got` is `closed`, `silent`, a status, or the name of an error; `text` what else was said."""

    at: str
    what: str
    got: str
    text: str = ""


def main() -> None:
    """Try everything at the targets."""
    targets = Targets(**json.load(sys.stdin))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    assert os.getuid() == os.geteuid() == USER
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = [one for tries in pool.map(_at_port, targets.ports) for one in tries]
    found += [_at_socket(path) for path in targets.sockets]
    for path in targets.files:
        found += [_tried(path, "read", _open), _tried(path, "write", _open_to_write)]
    found += [_tried(str(pid), "signal", _signal) for pid in targets.processes]
    json.dump([asdict(one) for one in found], sys.stdout)


def _at_port(address: str) -> list[Try]:
    return [*_raw(address), *_http(address), *_wire(address), *_grpc(address)]


def _raw(address: str) -> Iterator[Try]:
    for name, data in {"garbage": b"\x00\xff\x13\r\n\r\n", "redis": b"PING\r\nKEYS *\r\n"}.items():
        yield _told(address, name, _said(address, data))


def _http(address: str) -> Iterator[Try]:
    for method, path, body in _HTTP:
        head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        yield _told(address, f"{method} {path}", _said(address, head.encode() + body))


def _wire(address: str) -> Iterator[Try]:
    """The hello of a member, and a proof that is none with a message behind it."""
    for purpose in get_args(Purpose):
        proof = secrets.token_bytes(PROOF_BYTES) + (8).to_bytes(4, "big") + bytes(8)
        said = _said(address, hello(purpose, new_nonce()), proof)
        yield _told(address, f"wire {purpose}", said)


def _grpc(address: str) -> Iterator[Try]:
    with grpc.insecure_channel(address) as channel:
        for method, request in _RPC.items():
            call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{method}")
            data = b"" if request is None else request.SerializeToString()
            try:
                answers = list(call(data, timeout=TIMEOUT_S))
                yield Try(address, method, "OK", repr(answers)[:200])
            except grpc.RpcError as error:
                yield Try(address, method, error.code().name, str(error.details())[:200])


def _said(address: str, first: bytes, second: bytes = b"") -> bytes | str:
    """The server's last answer, up to its end or its silence; or the name of an error.

    The second message is sent once the first one is answered.
    """
    host, _, port = address.rpartition(":")
    said = b""
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
            sock.sendall(first)
            if second:
                sock.recv(_MOST_BYTES)
                sock.sendall(second)
            while len(said) < _MOST_BYTES and (more := sock.recv(_MOST_BYTES)):
                said += more
    except TimeoutError:
        return said or "silent"
    except OSError as error:
        return said or ("closed" if isinstance(error, ConnectionError) else type(error).__name__)
    return said or "closed"


def _told(address: str, what: str, said: bytes | str) -> Try:
    if isinstance(said, str):
        return Try(address, what, said)
    text = said.decode("latin-1")
    if said.startswith(b"HTTP/1."):
        return Try(address, what, text.split()[1], text.partition("\r\n\r\n")[2][:200])
    # A server of HTTP/2 greets with a frame of settings.
    return Try(address, what, "greeted" if said[3:4] == b"\x04" else "said", text[:200])


def _at_socket(path: str) -> Try:
    name = "\0" + path[1:] if path.startswith("@") else path

    def connect(_: str) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(name)

    return _tried(path, "connect", connect)


def _tried(path: str, what: str, act: Callable[[str], object]) -> Try:
    try:
        act(path)
    except OSError as error:
        return Try(path, what, type(error).__name__)
    return Try(path, what, "done")


def _open(path: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK))


def _open_to_write(path: str) -> None:
    _open(path, os.O_WRONLY)


def _signal(pid: str) -> None:
    os.kill(int(pid), 0)


if __name__ == "__main__":
    main()
