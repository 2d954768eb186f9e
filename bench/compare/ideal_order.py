"""The requests that an ideal order would serve of a burst, at a speed.

`python -m bench.compare.ideal_order 1300 [FIXED_MS]`.

Prompts are computed one at a time, the shortest waiting prompt first. Late prompts are refused, and
decoding costs no time. It is a yardstick and no proof: another order may serve more.
"""

from __future__ import annotations

import argparse
import heapq
from collections import Counter
from collections.abc import Callable, Sequence

from bench.load.arrivals import Arrival
from bench.systems.contenders import BurstShape, burst_load


def ideal(
    arrivals: Sequence[Arrival], seconds: Callable[[int], float], budget_s: float
) -> Counter[str]:
    """The number of first tokens in time, by phase; `seconds` is the time of so many tokens."""
    served: Counter[str] = Counter()
    waiting: list[tuple[int, int]] = []
    ahead = sorted(arrivals, key=lambda arrival: arrival.at_s)
    now_s, index = 0.0, 0
    while waiting or index < len(ahead):
        if not waiting:
            now_s = max(now_s, ahead[index].at_s)
        while index < len(ahead) and ahead[index].at_s <= now_s:
            heapq.heappush(waiting, (ahead[index].prompt_tokens, index))
            index += 1
        tokens, which = heapq.heappop(waiting)
        arrival, ends_s = ahead[which], now_s + seconds(tokens)
        if ends_s <= arrival.at_s + budget_s:
            now_s = ends_s
            served[arrival.phase] += 1
    return served


def main() -> None:
    """Print the result of each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens_per_s", type=float)
    parser.add_argument("fixed_ms", type=float, nargs="?", default=0.0, help="of each request")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    shape = BurstShape()
    for seed in range(1, options.seeds + 1):
        arrivals = burst_load(shape, seed).arrivals
        found = ideal(
            arrivals,
            lambda tokens: options.fixed_ms / 1000 + tokens / options.tokens_per_s,
            shape.budgets.ttft_s,
        )
        asked = Counter(arrival.phase for arrival in arrivals)
        told = ", ".join(f"{phase} {found[phase]} of {asked[phase]}" for phase in asked)
        print(f"seed {seed}: {found.total()} of {len(arrivals)}; {told}")


if __name__ == "__main__":
    main()
