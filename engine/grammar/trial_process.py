"""The parent's side of the process that tries grammars (`engine/grammar/trial.py`)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from engine.errors import Internal, InvalidRequest, Unavailable
from engine.types.grammar import COMPILE_S, Grammar

# Bounds: wall time. The process has less CPU time for a grammar, and is ended by the kernel.
_START_S = 60.0
ANSWER_S = 20.0
_END_S = 5.0
_PIECE_BYTES = 64 * 1024
# Signals by which others end the process: an operator, or a kernel short of memory.
_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ROOT = Path(__file__).resolve().parents[2]


class TrialProcess:
    """Tries grammars one at a time; belongs to one thread. Starts with the first grammar.

    `tokenizer`, `vocabulary` and `eos_ids` are as in `GrammarCompiler`.
    """

    def __init__(self, tokenizer: str, vocabulary: int, eos_ids: Collection[int]) -> None:
        first = {"tokenizer": tokenizer, "vocabulary": vocabulary, "eos_ids": sorted(eos_ids)}
        self._first = json.dumps(first).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._unfit: str | None = None  # why no answer of this model follows a grammar

    def try_grammar(self, grammar: Grammar) -> None:
        """Return if the grammar is sound.

        Raises InvalidRequest, which says what is wrong with it, Internal where no process starts,
        and Unavailable where it ended by something else than the grammar.
        """
        line = json.dumps([grammar.kind, grammar.text, grammar.field]).encode() + b"\n"
        process = self._running(grammar)
        try:
            message = self._ask(process, line, ANSWER_S)
        except (OSError, EOFError, TimeoutError) as error:
            what = self._died_of(process, error)
            self.close()
            if what is None:
                busy = "the process that compiles grammars ended"
                raise Unavailable(busy, retry_after_s=1.0) from None
            message = f"{grammar.field}: #: the {grammar.kind} {what}"
            raise InvalidRequest(message, field=grammar.field) from None
        if message is not None:
            raise InvalidRequest(message, field=grammar.field)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=_END_S)

    @staticmethod
    def _died_of(process: subprocess.Popen[bytes], error: Exception) -> str | None:
        """What is wrong with a grammar that ended the process; None where it did not end it."""
        if isinstance(error, TimeoutError):
            return None  # it has less CPU time than that, so the machine is busy
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None
        if code == -signal.SIGPROF:
            return f"takes more than {COMPILE_S:g} s to compile"
        if -code in _BY_OTHERS:
            return None
        return "is nested too deep" if code < 0 else "cannot be compiled"

    def _running(self, grammar: Grammar) -> subprocess.Popen[bytes]:
        if self._unfit is not None:
            raise InvalidRequest(f"{grammar.field}: {self._unfit}", field=grammar.field)
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.grammar.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": paths},
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        try:
            message = self._ask(process, self._first, _START_S)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise Internal("the process that compiles grammars did not start") from error
        if message is not None:
            self.close()
            self._unfit = message
            return self._running(grammar)
        return process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes, timeout_s: float) -> str | None:
        """The answer to a line; OSError, EOFError or TimeoutError where there is none."""
        assert process.stdin is not None
        assert process.stdout is not None
        end_s = time.monotonic() + timeout_s
        unsent = memoryview(line)
        while unsent:
            _wait(process.stdin.fileno(), select.POLLOUT, end_s)
            unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
        answer = b""
        while not answer.endswith(b"\n"):
            _wait(process.stdout.fileno(), select.POLLIN, end_s)
            piece = os.read(process.stdout.fileno(), _PIECE_BYTES)
            if not piece:
                raise EOFError
            answer += piece
        message: str | None = json.loads(answer)
        return message


def _wait(pipe: int, event: int, end_s: float) -> None:
    """Wait until the pipe is ready or broken; TimeoutError at `end_s`, by the monotonic clock.

    Not `select`, which takes no descriptor beyond 1023.
    """
    poller = select.poll()
    poller.register(pipe, event)
    if not poller.poll(max(0.0, end_s - time.monotonic()) * 1000):
        raise TimeoutError
