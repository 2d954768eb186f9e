"""Which process of this host holds which socket, by way of /proc."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# States of sockets in /proc/net/tcp.
LISTENS, CONNECTED = "0A", "01"


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A TCP socket, with host and port of both ends."""

    inode: str
    here: tuple[str, int]
    there: tuple[str, int]


def sockets_in(state: str) -> list[TcpSocket]:
    """Every TCP socket in that state."""
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    ends = [(row[9], _endpoint(row[1]), _endpoint(row[2])) for row in rows if row[3] == state]
    return [TcpSocket(*one) for one in ends]


def holders(inodes: set[str]) -> set[int]:
    """The processes that hold one of these sockets."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {int(entry.name) for entry in entries if sockets_of(entry) & inodes}


def listeners(port: int) -> set[int]:
    """The processes that listen on a TCP port."""
    return holders({one.inode for one in sockets_in(LISTENS) if one.here[1] == port})


def _endpoint(text: str) -> tuple[str, int]:
    """What /proc has as hexadecimal words in the byte order of the host."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)


def sockets_of(process: Path) -> set[str]:
    """Inodes of the sockets that a process holds."""
    links = []
    with suppress(OSError):
        for link in list((process / "fd").iterdir()):
            with suppress(OSError):  # it was closed since
                links.append(str(link.readlink()))
    return {link[8:-1] for link in links if link.startswith("socket:[")}
