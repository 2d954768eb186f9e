"""`make bench-schemas`: the share of JSON schemas that compile here, and by llguidance alone.

Here a schema is tried as a router tries it: with bounds of size, depth, time, memory and stack.
llguidance alone has its defaults, 20 s, and a process for each schema, which may die by it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import random
import re
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from bench.core.host_info import as_line, describe_machine, now
from bench.core.json_schemas import make_schemas
from bench.core.markdown_tables import table
from bench.core.model_135m import EOS, ModelShape
from bench.core.results import Figure, Series, keep, series_of, value_of
from bench.engine.guided_answers import byte_level_tokenizer
from cluster.work_progress import tracked
from engine.errors import InvalidRequest
from engine.grammar.trial_process import TrialProcess
from engine.types.grammar import Grammar

OURS, ALONE = "Tandem", "llguidance alone"
COMPILED = "compiled"
_MOST = 300
_ALONE_S = 20.0
# What a message says, and the reason that is counted.
_REASONS = (
    (r"at most \d+ bytes", "too large"),
    (r"nested deeper|nested too deep", "nested too deep"),
    (r"takes more than", "takes too long"),
    (r"process ended", "ends the process"),
    (r"Unsatisfiable", "cannot be satisfied"),
    (r"oneOf", "oneOf of schemas that overlap"),
    (r"minProperties", "minProperties"),
    (r"not disjoint", "patternProperties that overlap"),
    (r"Unknown format", "unknown format"),
    (r"retriev|not present in a registry|does not exist|Unresolvable", "a reference leads nowhere"),
    (r"regex", "a pattern beyond regular expressions"),
    (r"too (?:complex|large|big|many)|limit|fuel", "too complex"),
    (r"Expected|Invalid|must be|not JSON", "no valid schema"),
)


def reason_of(message: str) -> str:
    """The reason that a message is counted for."""
    if keywords := re.search(r'Unimplemented keys: \["([^"]+)"', message):
        return f"keyword {keywords[1]}"
    found = (reason for pattern, reason in _REASONS if re.search(pattern, message))
    return next(found, "other")


def tried_here(schemas: Sequence[str], tokenizer: str, vocabulary: int) -> list[str | None]:
    """What is wrong with each schema as a client's; None where nothing is."""
    trial, found = TrialProcess(tokenizer, vocabulary, [EOS]), list[str | None]()
    try:
        for text in tracked(OURS, schemas):
            try:
                trial.try_grammar(Grammar("json_schema", text))
            except InvalidRequest as error:
                found.append(error.message)
            else:
                found.append(None)
    finally:
        trial.close()
    return found


def tried_alone(schemas: Sequence[str], tokenizer: str, vocabulary: int) -> list[str | None]:
    """What llguidance says of each schema; None where it compiles."""
    tokens = LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=[EOS])
    return [_compiled_apart(tokens, text) for text in tracked(ALONE, schemas)]


def _compiled_apart(tokens: LLTokenizer, text: str) -> str | None:
    receiver, sender = mp.Pipe(duplex=False)
    child = mp.get_context("fork").Process(target=_compile, args=(tokens, text, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(_ALONE_S):
            return f"takes more than {_ALONE_S:g} s"
        message: str = receiver.recv()
        return message or None
    except EOFError:
        return "the process ended"
    finally:
        child.kill()
        child.join()
        child.close()
        receiver.close()


def _compile(tokens: LLTokenizer, text: str, sender: Connection) -> None:
    try:
        source = LLMatcher.grammar_from_json_schema(text)
        sender.send(LLMatcher(tokens, source, log_level=0).get_error())
    except ValueError as error:
        sender.send(str(error))


def figures(found: dict[str, list[str | None]]) -> dict[str, Figure]:
    """The share that compiles, and the schemas of each reason."""
    made: dict[str, Figure] = {}
    for way, messages in found.items():
        count = len(messages)
        made[f"{way}: {COMPILED}"] = value_of(
            messages.count(None) / count, "of 1", count, "schemas"
        )
        reasons = Counter(reason_of(message) for message in messages if message is not None)
        for reason, times in reasons.most_common():
            made[f"{way}: refused, {reason}"] = value_of(times, "schemas", count, "schemas")
    return made


def read_schemas(folder: Path, most: int) -> list[str]:
    """A sample of the JSON files in a folder, with no space between tokens."""
    paths = sorted(folder.rglob("*.json"))
    random.Random(0).shuffle(paths)
    return [_compact(path.read_text(encoding="utf-8-sig")) for path in paths[:most]]


def _compact(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return text


def _series(name: str, schemas: Sequence[str], tokenizer: str, machine: dict[str, str]) -> Series:
    vocabulary = ModelShape().vocabulary
    found = {
        OURS: tried_here(schemas, tokenizer, vocabulary),
        ALONE: tried_alone(schemas, tokenizer, vocabulary),
    }
    return series_of(
        name, machine, {"schemas": len(schemas), "vocabulary": vocabulary}, figures(found)
    )


def main() -> None:
    """Try made schemas and those of a folder, print, and keep the figures where asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, help="JSON files, each a schema; a sample is tried")
    parser.add_argument("--name", default="real schemas", help="of the folder, in the figures")
    parser.add_argument("--most", type=int, default=_MOST, help="schemas of each set")
    parser.add_argument("--results", type=Path, help="the folder in which the figures are kept")
    options = parser.parse_args()
    sets = {"made schemas": [json.dumps(one) for one in make_schemas(options.most, seed=1)]}
    if options.folder:
        sets[options.name] = read_schemas(options.folder, options.most)
    machine = describe_machine()
    tokenizer = byte_level_tokenizer(ModelShape().vocabulary)
    made = [_series(name, schemas, tokenizer, machine) for name, schemas in sets.items()]
    print(f"{now()}; {as_line(machine)}")
    for series in made:
        rows = [[name, f"{one.value:g}", one.unit] for name, one in series.figures.items()]
        print(f"\n{table((series.name, 'value', 'unit'), rows)}")
    if options.results:
        keep(options.results, "schemas", machine, made)


if __name__ == "__main__":
    main()
