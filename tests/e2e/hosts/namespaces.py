"""Hosts of one machine, made of namespaces: each has a network, processes and a name of its own.

    this process ── 198.18.R.254        (a wire whose other end goes with the switch)
                        │
    switch (a bridge in a namespace of its own)
      ├── host one   198.18.R.1   processes of its own, /etc/hosts, /dev/shm, /tmp/ray
      └── host two   198.18.R.2

Nothing has a name that outlives it: each host is kept by one process, the kernel ends that one
with the process that made it, and with it all that runs there, its wire and its mounts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.deploy.child_processes import tied

TOOLS = ("ip", "mount", "nsenter", "unshare")
_END_TIMEOUT_S = 20
_COMMAND_TIMEOUT_S = 60
_SELF = 254
_wires = itertools.count()

# The first process of a host: it holds the namespaces, and buries those whose parents died.
_HOLD = """
set -e
ip link set lo up
{setup}
echo up
while :; do sleep 1000000 & wait $! || true; done
"""
_FURNISH = """
echo {name} > /proc/sys/kernel/hostname
mount --bind {names} /etc/hosts
mount -t tmpfs -o size=1g tmpfs /dev/shm
mkdir -p /tmp/ray
mount --bind {ray} /tmp/ray
"""


def missing() -> str | None:
    """Why hosts cannot be made here, or None."""
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no {', '.join(absent)} here (iproute2, util-linux)"
    try:
        with tempfile.TemporaryDirectory() as folder, Switch(("probe",), Path(folder)):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        return f"network namespaces cannot be used here: {str(reason).strip()}"


class Room:
    """Namespaces, and the process that holds them; `kinds` are options of `unshare`."""

    def __init__(self, kinds: Sequence[str], setup: str) -> None:
        self._holder = subprocess.Popen(
            tied(
                ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", _HOLD.format(setup=setup)]
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            raise OSError(self._holder.communicate(timeout=_END_TIMEOUT_S)[1].strip())

    @property
    def pid(self) -> int:
        """The process that holds it, as it is called out here."""
        return self._holder.pid

    def enter(self) -> list[str]:
        """What goes before a command that is to run in there."""
        at = f"/proc/{self.pid}/ns"
        kinds = {"net": "net", "mnt": "mount", "uts": "uts", "pid_for_children": "pid"}
        return ["nsenter", *(f"--{kind}={at}/{name}" for name, kind in kinds.items())]

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in there to its end; returns what it printed."""
        done = subprocess.run(
            [*self.enter(), *command],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=check,
        )
        return done.stdout

    def close(self) -> None:
        """End it, and whatever runs in it. Idempotent."""
        self._holder.kill()
        self._holder.communicate(timeout=_END_TIMEOUT_S)


class Host(Room):
    """One host. `address` is its own on the switch, `folder` its disk, seen from out here."""

    def __init__(self, name: str, address: str, names: Path, folder: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        (folder / "ray").mkdir(parents=True, exist_ok=True)
        setup = _FURNISH.format(name=name, names=names, ray=folder / "ray")
        super().__init__(["--net", "--uts", "--mount", "--pid", "--mount-proc"], setup)

    def start(
        self, *command: str, log: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in there; its output is appended to `folder/log`."""
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                [*self.enter(), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def kill_all(self) -> None:
        """Kill -9 every process of the host but its first; its disk and its wire stay."""
        self.run("sh", "-c", "kill -9 -1", check=False)
        self._bury()

    def close(self) -> None:
        """End it, and whatever runs in it. Idempotent."""
        super().close()
        self._bury()

    def _bury(self) -> None:
        for process in self._started:
            process.wait(_END_TIMEOUT_S)
        self._started.clear()

    def processes(self) -> dict[int, str]:
        """What runs there: the process's number out here, and its command line."""
        network = Path(f"/proc/{self.pid}/ns/net").readlink()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if (entry / "ns" / "net").readlink() == network:
                    words = (entry / "cmdline").read_text().replace("\0", " ")
                    found[int(entry.name)] = words.strip()
        return found

    def kill(self, title: str) -> None:
        """Kill -9 the one process of the host whose command line begins so."""
        (pid,) = [pid for pid, line in self.processes().items() if line.startswith(title)]
        os.kill(pid, signal.SIGKILL)


class Switch(Room):
    """A bridge, the hosts on it, and a wire to this process."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.hosts: dict[str, Host] = {}
        super().__init__(
            ["--net", "--pid"], "ip link add bridge type bridge; ip link set bridge up"
        )
        try:
            net = _free_net()
            table = folder / "hosts"
            addresses = {name: f"{net}.{number}" for number, name in enumerate(names, 1)}
            lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in addresses.items())]
            table.write_text("\n".join([*lines, ""]))
            for name, address in addresses.items():
                host = self.hosts[name] = Host(name, address, table, folder / name)
                self._wire(name, "eth0", host.pid)
                host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
                host.run("ip", "link", "set", "eth0", "up")
            wire = f"tdm{os.getpid()}x{next(_wires)}"
            self._wire("outside", wire, os.getpid())
            _ip("address", "add", f"{net}.{_SELF}/24", "dev", wire)
            _ip("link", "set", wire, "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cut(self, name: str) -> None:
        """Take the host's link down: nothing gets through, and nobody is told."""
        self.run("ip", "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Take it up again."""
        self.run("ip", "link", "set", name, "up")

    def close(self) -> None:
        """End all hosts and what runs on them. Idempotent."""
        for host in self.hosts.values():
            host.close()
        super().close()

    def enter(self) -> list[str]:
        """It is a network alone."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def _wire(self, port: str, end: str, pid: int) -> None:
        """A wire from a port of the switch to the network of a process, where it is `end`."""
        self.run("ip", "link", "add", port, "type", "veth", "peer", end, "netns", str(pid))
        self.run("ip", "link", "set", port, "master", "bridge", "up")


def _free_net() -> str:
    """One of the nets that are set apart for tests (RFC 2544), and not in use here."""
    used = _ip("-4", "address")
    nets = [net for number in range(256) if f" {(net := f'198.18.{number}')}." not in used]
    return random.SystemRandom().choice(nets)


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
    )
    return done.stdout
