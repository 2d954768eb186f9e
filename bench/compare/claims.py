"""`make bench-claims`: measures common claims about serving on Tandem."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.burst_measurement import of_itl
from bench.compare.claim_modes import MODES, STATIC_MODE, latency_p95, tokens_per_s
from bench.compare.claim_table import (
    CHUNKS,
    COALESCED,
    KEYS,
    PRICE_PER_HOUR,
    SPECULATIVE,
    STATIC,
    as_series,
    claims_table,
    parts_of,
)
from bench.compare.speculative_baseline import lookup_ratio
from bench.core.host_info import as_line, describe_machine
from bench.core.prompts import count_tokens, prompt_ids
from bench.core.results import keep
from bench.core.statistics import steady_rate
from bench.core.tandem_config import WIDE
from bench.load.client import send_request, send_requests
from bench.load.closed_loop import ServerTarget
from bench.load.goodput import Quantiles
from bench.load.http_recording import BadAnswer, RecordedAnswer
from bench.load.run_record import Sender
from bench.systems import services
from bench.systems.cli_paths import add_paths, open_record, prepare
from bench.systems.contenders import itl_load, warm_load
from bench.systems.services import CliPaths
from cluster.work_progress import tracked

_DEADLINE_S = 120.0
_EACH_TOKEN = "endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000, stream: tokens}}\n"
_CHUNKS = "prefill: {{chunk_tokens: {}}}\n"
Values = dict[str, list[float]]


@dataclass(slots=True)
class Questions:
    """Sends the requests to one server; `name` makes its prompts unique."""

    server: ServerTarget
    name: str
    asked: int = 0
    by_claim: Values = field(default_factory=lambda: defaultdict(list))

    async def serving(self) -> None:
        """Measure one value of every claim that needs only the default configuration."""
        alone, eight, many = [await self.rate(batch, new) for batch, new in _BATCHES.items()]
        self.by_claim["batch"].append(many / alone)
        self.by_claim["token-time"].append(8 * alone / eight)
        await self._cached()
        await self._whole()
        await self._one_by_one()

    async def rate(self, batch: int, new: int) -> float:
        """Tokens per second while that many streams run."""
        requests = [self._request(128, new) for _ in range(batch)]
        answers = await send_requests(self.server.target, requests, _DEADLINE_S)
        return steady_rate([answer.stream() for answer in answers])

    async def _cached(self) -> None:
        long = self._request(1024, 2)
        first, again = [await self._first_s(long) for _ in range(2)]
        half = await self._first_s(self._request(512, 2))
        self.by_claim["repeated"].append(first / again)
        self.by_claim["halved"].append(first / half)

    async def _whole(self) -> None:
        """16 answers at once, streamed and whole."""
        streamed, streamed_s = await self._timed([self._request(128, 256) for _ in range(16)])
        whole, whole_s = await self._timed([self._request(128, 256, False) for _ in range(16)])
        for answer in whole:
            if answer.status() != 200:
                raise BadAnswer("a whole answer was refused")
        first_s = [statistics.median(map(_first_byte_s, them)) for them in (whole, streamed)]
        self.by_claim["whole"].append(streamed_s / whole_s)
        self.by_claim["whole-first"].append(1000 * (first_s[0] - first_s[1]))

    async def _one_by_one(self) -> None:
        _, together_s = await self._timed([self._request(128, 64) for _ in range(8)])
        started = time.perf_counter()
        for _ in range(8):
            await self._timed([self._request(128, 64)])
        self.by_claim["one-by-one"].append((time.perf_counter() - started) / together_s)

    async def _timed(self, requests: list[bytes]) -> tuple[list[RecordedAnswer], float]:
        started = time.perf_counter()
        answers = await send_requests(self.server.target, requests, _DEADLINE_S)
        return answers, time.perf_counter() - started

    async def _first_s(self, request: bytes) -> float:
        return (await send_request(self.server.target, request, _DEADLINE_S)).first_token_s()

    def _request(self, tokens: int, new: int, stream: bool = True) -> bytes:
        self.asked += 1
        ids = prompt_ids(tokens, self.server.vocabulary, f"{self.name}/{self.asked}")
        return self.server.completion(ids, new) if stream else self.server.whole(ids, new)


_BATCHES: Mapping[int, int] = {1: 64, 8: 96, 32: 160}


async def serving(server: ServerTarget, name: str) -> Values:
    """All claims of the default configuration, three times after a warm-up."""
    await Questions(server, f"{name}/warm").serving()
    questions = Questions(server, name)
    for _ in range(3):
        await questions.serving()
    return dict(questions.by_claim)


async def wide_rate(server: ServerTarget, name: str) -> float:
    """The median decode rate of 32 streams, after a warm-up."""
    questions = Questions(server, name)
    rates = [await questions.rate(32, 160) for _ in range(4)]
    return statistics.median(rates[1:])


async def itl_p95(server: ServerTarget, name: str) -> float:
    """ITL p95 (s) of four streams while four long prompts arrive, of three runs together."""
    sender = Sender(count=count_tokens)
    await sender.send(name, server, warm_load(1), {}, None)
    itls: list[float] = []
    for seed in (1, 2, 3):
        itls += of_itl(await sender.send(name, server, itl_load(seed), {}, None))[1]["during"]
    p95 = Quantiles.of(itls).p95
    if p95 is None:
        raise BadAnswer("no stream ran while the long prompts arrived")
    return p95


def measure(part: str, paths: CliPaths, number: int) -> Values:
    """Measure one round of a part of the claims; raises its errors."""
    name = f"round {number}"

    def on(more: str, prefill: int, rate_of: Callable[[ServerTarget], float]) -> float:
        with services.tandem(paths, prefill, 1, more).running(paths.logs) as server:
            return rate_of(server)

    if part == COALESCED:
        coalesced, single = (
            on(WIDE + more, 1, lambda server: asyncio.run(wide_rate(server, name)))
            for more in ("", _EACH_TOKEN)
        )
        return {"coalesced": [coalesced / single]}
    if part == CHUNKS:
        large, small = (
            on(
                _CHUNKS.format(tokens) + _EACH_TOKEN,
                0,
                lambda server: asyncio.run(itl_p95(server, name)),
            )
            for tokens in (4096, 256)
        )
        return {"chunks": [large / small]}
    if part == STATIC:
        static, continuous = (
            on(mode, 0, lambda server: asyncio.run(latency_p95(server, name, number)))
            for mode in (STATIC_MODE, "")
        )
        return {STATIC: [static / continuous]}
    if part in MODES:
        rate = on(MODES[part], 0, lambda server: asyncio.run(tokens_per_s(server, name, number)))
        return {part: [rate]}
    if part == SPECULATIVE:
        return {SPECULATIVE: [lookup_ratio()]}
    with services.tandem(paths, more=WIDE).running(paths.logs) as server:
        return asyncio.run(serving(server, name))


def main() -> None:
    """See the module."""
    options = _options()
    paths = prepare(options)
    record = open_record(options, "claims.json")
    by_claim: Values = json.loads(record.read_text()) if record.is_file() else {}
    keys = options.only or list(KEYS)
    rounds = [(part, number) for part in parts_of(keys) for number in range(1, options.rounds + 1)]
    for part, number in tracked("claims", rounds, lambda each: f"{each[0]}, round {each[1]}"):
        try:
            values = measure(part, paths, number)
        # The other parts are still measured.
        except Exception as error:
            print(f"{part}, round {number}: {type(error).__name__}: {error}", flush=True)
            continue
        for key in keys:
            by_claim.setdefault(key, []).extend(values.get(key, []))
        record.write_text(json.dumps(by_claim))
        print(f"{part}, round {number}: {values}", flush=True)
    _write(by_claim, options.results, options.price)


def _write(by_claim: Values, results: Path, price: float) -> None:
    machine = describe_machine()
    cost = f"A million tokens at ${price:.2f} for an hour of the machine (`--price`)."
    print("\n\n".join((claims_table(by_claim, price), cost, as_line(machine))))
    keep(results, "claims", machine, [as_series(by_claim, machine, price)])


def _first_byte_s(answer: RecordedAnswer) -> float:
    return answer.reads[0][0] - answer.asked


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", action="append", choices=KEYS, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--price", type=float, default=PRICE_PER_HOUR, metavar="DOLLARS", help="of a machine-hour"
    )
    add_paths(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
