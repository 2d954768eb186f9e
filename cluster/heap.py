"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc


def settle() -> None:
    """Call it once, when all is loaded: what is there now stays, and is looked through no more.

    Modules and models are some 400,000 objects, and every full collection would stop requests and
    steps for a fifth of a second to find nothing among them.
    """
    gc.collect()
    gc.freeze()
