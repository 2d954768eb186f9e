"""The sampler's randomness: a pure function of seed, choice and position.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014). It is counter-based: its n-th output needs n alone, not the outputs
before it. So any replica can go on with a request at any token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(state: int, index: int) -> int:
    """Output number `index`, from 0, of SplitMix64 started at `state`; 64 bits."""
    word = (state + (index + 1) * _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1), of 53 bits, that draws the token at an absolute position.

    Each choice has a stream of its own, started at a word drawn from the seed's stream.
    """
    return (splitmix64(stream_of(seed, choice), position) >> 11) * 2.0**-53


def stream_of(seed: int, choice: int) -> int:
    """The word at which the stream of a choice starts."""
    return splitmix64(splitmix64(seed, 0), choice)


def uniform_at(streams: NDArray[np.uint64], positions: Sequence[int]) -> NDArray[np.float64]:
    """The numbers of `uniform` for many streams, each at its position; [streams]."""
    word = streams + (np.array(positions, np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (word ^ (word >> np.uint64(31))) >> np.uint64(11)
    numbers: NDArray[np.float64] = bits * 2.0**-53
    return numbers
