"""SIGTERM fails the health check, and does not end the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

# As in a process of Ray: its own handler is there, the main thread waits in C, and a thread serves.
SERVED = """
import signal, sys, threading
from cluster.replica.end_signal import EndSignal

def serve():
    end_signal = EndSignal()
    end_signal.check()
    print("ready", flush=True)
    while not end_signal.received:
        pass
    for _ in range(2):
        try:
            end_signal.check()
        except Exception as error:
            print(error, flush=True)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
thread = threading.Thread(target=serve)
thread.start()
thread.join()
"""


def test_sigterm_fails_the_health_check_and_the_process_goes_on():
    process = subprocess.Popen([sys.executable, "-c", SERVED], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert rest.splitlines() == ["SIGTERM: this process is to be replaced"] * 2
    assert process.returncode == 0
