"""Grammars of long answers, compiled for a made vocabulary of bytes, digits and words.

The measured model is random, so any vocabulary of its size fits. This one is as wide as a real one
and has a real one's kinds of tokens, because the time of a mask depends on both.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from bench.core.model_135m import BOS, EOS, UNKNOWN
from engine.grammar.compiler import GrammarCompiler
from engine.types.grammar import Grammar

_SEED = 0
_SPECIAL = {UNKNOWN: "<unk>", BOS: "<s>", EOS: "</s>"}
_JSON_PIECES = ('{"', '":', '",', '"}', '":"', '","', "],", "},", '"]', "}]", "[{", '":[', '":{"')
_SPACE = "Ġ"  # how byte-level tokenizers write a space
_SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
_STATES = ["new", "paid", "packed", "sent", "returned", "lost"]
_TEXT = {"type": "string", "maxLength": 24}
# Of one record; an answer has so many records that no stream ends while it is measured.
_RECORDS: tuple[dict[str, object], ...] = (
    {"id": {"type": "integer"}, "name": _TEXT, "state": {"enum": _STATES}},
    {
        "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "price": {"type": "number", "minimum": 0},
        "tags": {"type": "array", "items": _TEXT, "maxItems": 3},
    },
    {"at": {"type": "string", "format": "date-time"}, "text": {"type": "string", "maxLength": 200}},
    {
        "who": {"anyOf": [_TEXT, {"type": "integer"}, {"type": "null"}]},
        "where": {
            "type": "object",
            "properties": {"town": _TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["town", "zip"],
            "additionalProperties": False,
        },
    },
)
_LEAST_RECORDS = 500


def grammars() -> list[Grammar]:
    """JSON schemas of four kinds of records; each answer is a long list of records."""
    found = []
    for properties in _RECORDS:
        record = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        schema = {"type": "array", "items": record, "minItems": _LEAST_RECORDS}
        found.append(Grammar("json_schema", json.dumps(schema)))
    return found


def new_compiler(vocabulary: int) -> GrammarCompiler:
    """A compiler for the byte-level tokenizer with so many tokens."""
    return GrammarCompiler(byte_level_tokenizer(vocabulary), vocabulary, [EOS])


def byte_level_tokenizer(vocabulary: int) -> str:
    """A tokenizer with so many tokens, as the JSON of the `tokenizers` library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {piece: token for token, piece in enumerate(vocabulary_pieces(vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=_SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*_SPECIAL.values()])
    serialized: str = tokenizer.to_str()
    return serialized


def write_text_model(model: Path, vocabulary: int) -> Path:
    """Write a folder with the model's weights and the byte-level tokenizer; returns it."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    folder = model.with_name(f"{model.name}-texts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in model.iterdir():
        if "token" not in path.name:
            (folder / path.name).symlink_to(path.absolute())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level_tokenizer(vocabulary)),
        unk_token=_SPECIAL[UNKNOWN],
        bos_token=_SPECIAL[BOS],
        eos_token=_SPECIAL[EOS],
    )
    tokenizer.save_pretrained(folder)
    return folder


def vocabulary_pieces(size: int) -> list[str]:
    """The pieces of the tokens: special ones, bytes, numbers, marks of JSON, and random words."""
    from tokenizers import pre_tokenizers

    pieces = dict.fromkeys([*_SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())])
    pieces |= dict.fromkeys(_JSON_PIECES)
    pieces |= dict.fromkeys(f"{number:0{width}}" for width in (2, 3) for number in range(10**width))
    chosen = random.Random(_SEED)
    while len(pieces) < size:
        word = "".join(chosen.choices(_SYLLABLES, k=chosen.randint(1, 5)))[: chosen.randint(2, 10)]
        shown = word.title() if chosen.random() < 0.2 else word
        pieces[_SPACE + shown if chosen.random() < 0.5 else shown] = None
    return list(pieces)[:size]
