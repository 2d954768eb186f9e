"""The process that listens on a port."""

from __future__ import annotations

import os
import socket

from bench.core.process_sockets import listeners


def test_the_listeners_of_a_port_are_found():
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        port = mine.getsockname()[1]
        assert listeners(port) == {os.getpid()}
    assert listeners(port) == set()
