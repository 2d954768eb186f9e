"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc

# New objects before the youngest are looked through: 700 are fewer than a request makes, and each
# of them would be stopped by a collection of its own.
_YOUNG = 10_000


def settle() -> None:
    """Call it once, when all is loaded: what is there now stays, and is looked through no more.

    Modules and models are some 400,000 objects, and every full collection would stop requests and
    steps for a fifth of a second to find nothing among them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
