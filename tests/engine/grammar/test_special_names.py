"""Grammars whose texts are those of special tokens."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from engine.errors import Internal, InvalidRequest
from engine.grammar.masks import MaskMaker
from engine.grammar.special_names import SpecialNames
from engine.types.grammar import Grammar, choice_grammar
from tests import tiny
from tests.engine.grammar.walks import allowed, new_compiler, sequence_of, text_of
from tests.engine.text.families import FAMILIES

END = "<|end|>"


@pytest.fixture(scope="module")
def compiler():
    return new_compiler()


@pytest.mark.parametrize(
    "grammar, text",
    [
        (choice_grammar([f"so {END}."]), f"so {END}."),
        (Grammar("json_schema", json.dumps({"enum": [END * 3]})), json.dumps(END * 3)),
        (Grammar("regex", "a<[|]end[|]>b"), f"a{END}b"),
        (Grammar("lark", f'start: "a{END}" /{END.replace("|", "[|]")}/'), f"a{END}{END}"),
    ],
)
def test_the_text_of_a_special_token_is_forced_as_text(compiler, grammar, text):
    maker, output = MaskMaker(tiny.VOCABULARY), []
    matcher = compiler.compile(grammar).matcher()
    while (tokens := allowed(maker, sequence_of(matcher, output))) != [tiny.EOS]:
        output.append(tokens[0])
    assert text_of(output) == text


def test_a_grammar_names_a_special_token_by_its_own_name(compiler):
    matcher = compiler.compile(Grammar("lark", 'start: "a" <|start|> /b"/ "<|start|>"')).matcher()
    letters = tiny.make_tokenizer().backend_tokenizer.get_vocab()
    text = [letters[one] for one in 'b"<|start|>']
    matcher.follow([letters["a"], tiny.BOS, *text], 0)
    assert matcher.tokens.is_accepting()
    with pytest.raises(Internal):
        compiler.compile(Grammar("lark", 'start: "<|start|>"')).matcher().follow([tiny.BOS], 0)
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(Grammar("lark", "start: <|nope|>"))
    assert "<|nope|>" in caught.value.message


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tokens_keep_their_ids(family):
    backend = family().backend_tokenizer
    document = json.loads(backend.to_str())
    names = SpecialNames(document)
    vocabulary = Tokenizer.from_str(json.dumps(document)).get_vocab(with_added_tokens=True)
    own = {names.own(text): token for text, token in vocabulary.items()}
    assert own == backend.get_vocab(with_added_tokens=True) and own != vocabulary
    special = [t for t, one in backend.get_added_tokens_decoder().items() if one.special]
    assert [names.text(token) for token in special] == [backend.id_to_token(t) for t in special]
