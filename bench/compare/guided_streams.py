"""Streams that follow JSON schemas beside free streams at one `tandem serve`, by turns.

python -m bench.compare.guided_streams [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from statistics import median

from bench.core.host_info import as_line, describe_machine, now
from bench.core.markdown_tables import table
from bench.core.model_135m import ModelShape
from bench.core.prompts import prompt_ids
from bench.core.results import Figure, figure, keep, only_measured, series_of, value_of
from bench.core.statistics import Stream, steady_rate
from bench.core.tandem_config import WIDE
from bench.engine.guided_answers import grammars, write_text_model
from bench.load.client import send_requests
from bench.load.closed_loop import ServerTarget
from bench.load.http_recording import RecordedAnswer, choices
from bench.systems import services
from bench.systems.cli_paths import add_paths, prepare
from cluster.work_progress import tracked

_PROMPT = 128
_MS = 1000.0
_DEADLINE_S = 180.0
_USAGE = {"stream_options": {"include_usage": True}, "return_token_ids": True}


def main() -> None:
    """Serve the model with a tokenizer of texts, measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    add_paths(parser)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    paths = prepare(options)
    paths = replace(paths, model=write_text_model(paths.model, ModelShape().vocabulary))
    service = services.tandem(paths, prefill=0, more=WIDE)
    with service.running(paths.logs) as server:
        found = asyncio.run(_measure(replace(server, extra=_USAGE), options))
    machine = describe_machine()
    rows = [[name, f"{one.value:.3f}", one.unit] for name, one in found.items()]
    print(f"{now()}; {as_line(machine)}\n\n{table(('figure', 'median', 'unit'), rows)}")
    conditions = {"streams": options.streams, "tokens": options.tokens, "rounds": options.rounds}
    series = series_of("served", machine, conditions, found)
    keep(options.results, "guided", machine, [series])


async def _measure(server: ServerTarget, options: argparse.Namespace) -> dict[str, Figure]:
    free, guided = [], []
    for index in tracked("guided, served", range(options.rounds + 1)):
        pair = [await _gap_ms(server, options, index, guided=which) for which in (False, True)]
        if index:  # the first round warms the server up
            free.append(pair[0])
            guided.append(pair[1])
    ratios = [a / b for a, b in zip(guided, free, strict=True)]
    over = value_of(median(ratios), "x", len(ratios), "rounds", ratios)
    return only_measured(
        {
            "served: token gap, free": figure(free, "ms", "rounds"),
            "served: token gap, guided": figure(guided, "ms", "rounds"),
            "served: guided over free": over,
        }
    )


async def _gap_ms(
    server: ServerTarget, options: argparse.Namespace, index: int, *, guided: bool
) -> float:
    """The mean time between two tokens of a stream while all streams run, in ms."""
    schemas = [grammar.text for grammar in grammars()]
    requests = []
    for stream in range(options.streams):
        ids = prompt_ids(_PROMPT, server.vocabulary, f"{index}/{stream}/{guided}")
        more = {"guided_json": schemas[stream % len(schemas)]} if guided else {"ignore_eos": True}
        asked = replace(server, extra={**server.extra, **more})
        requests.append(asked.completion(ids, options.tokens))
    answers = await send_requests(server.target, requests, _DEADLINE_S)
    streams = [_tokens_of(answer) for answer in answers]
    return _MS * len(streams) / steady_rate(streams)


def _tokens_of(answer: RecordedAnswer) -> Stream:
    """The times of events with tokens, and their numbers; raises BadAnswer."""
    counted = (
        (moment, sum(len(choice.get("token_ids") or ()) for choice in choices(event)))
        for moment, event in answer.events()
    )
    return [(moment, tokens) for moment, tokens in counted if tokens]


if __name__ == "__main__":
    main()
