"""A process that compiles the grammars of clients first, because it may die by one.

It reads JSON lines and answers each with one: `null` where the grammar is sound, or what is wrong
with it. The first line has the tokenizer. The kernel ends the process where a grammar takes too
much CPU time, memory or stack. It ends by itself where its input does.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import threading

import numpy as np

from engine.errors import Internal, InvalidRequest, TandemError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import GrammarMatcher
from engine.types.grammar import COMPILE_S, Grammar

# Bounds. A replica has more stack, so no recursion overflows there first.
_MEMORY_BYTES = 4 * 1024**3
_STACK_BYTES = 1024 * 1024
_STEPS = 16


def main() -> None:
    """Serve until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK_BYTES)
    serving = threading.Thread(target=_serve)
    serving.start()
    serving.join()


def _serve() -> None:
    first = json.loads(sys.stdin.readline())
    try:
        compiler = GrammarCompiler(first["tokenizer"], first["vocabulary"], first["eos_ids"])
    except TandemError as error:
        _answer(error.message)
        return
    _answer(None)
    for line in sys.stdin:
        kind, text, field = json.loads(line)
        # By its default a signal of this timer ends the process.
        signal.setitimer(signal.ITIMER_PROF, COMPILE_S)
        message = _try(compiler, Grammar(kind, text, field))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(message)


def _try(compiler: GrammarCompiler, grammar: Grammar) -> str | None:
    """Compile a grammar and begin an answer; the reason where either fails."""
    try:
        compiled = compiler.compile(grammar)
        compiled.know_texts()
    except InvalidRequest as error:
        return error.message
    except Exception as error:
        # Of what a client sent, and not of this process: the reason is for the client.
        return f"{grammar.field}: #: it cannot be compiled ({type(error).__name__})"
    try:
        _begin_answer(compiled.matcher())
    except (Internal, InvalidRequest) as error:
        return f"{grammar.field}: #: {error.message}"
    return None


def _begin_answer(matcher: GrammarMatcher) -> None:
    """Take some random tokens; raises what the matcher does."""
    chosen, taken = random.Random(0), list[int]()
    for _ in range(_STEPS):
        mask = np.frombuffer(bytearray(matcher.tokens.compute_bitmask()), dtype=np.int32)
        matcher.finish(mask)
        if matcher.tokens.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        tokens = [token for token in allowed.tolist() if not matcher.ends_with(token)]
        if not tokens:
            return
        taken.append(chosen.choice(tokens))
        matcher.follow(taken, 0)


def _answer(message: str | None) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
