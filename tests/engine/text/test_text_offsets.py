"""Names and offsets of tokens that are parts of characters."""

import pytest

from engine.text.detokenizer import Detokenizer
from engine.text.text_offsets import TextOffsets
from engine.text.token_names import bytes_of_name
from engine.text.tokenizer import Tokenizer
from tests.engine.text.test_tokenizer import BUILDERS, byte_level, sentencepiece_like, wrap

TEXT = "Émoji 😀 ünï, the end 漢字ф"


@pytest.mark.parametrize("build", [byte_level, sentencepiece_like])
def test_names_tell_tokens_apart_and_make_the_text(build):
    tokenizer = Tokenizer(wrap(build()))
    names = {tokenizer.token_text(token) for token in range(tokenizer.vocabulary)}
    assert len(names) == tokenizer.vocabulary
    ids = tokenizer.encode(TEXT)
    found = b"".join(bytes_of_name(tokenizer.token_text(token)) for token in ids)
    assert found.decode().removeprefix(" ") == TEXT
    assert any(tokenizer.token_text(token).startswith("bytes:\\x") for token in ids)


@pytest.mark.parametrize("build", BUILDERS)
def test_each_token_begins_where_its_character_does(build):
    tokenizer = Tokenizer(wrap(build()))
    ids = [1, *tokenizer.encode(TEXT), 0]
    offsets, detokenizer = TextOffsets(tokenizer), Detokenizer(tokenizer)
    text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    found = [offsets.push(token) for token in ids]
    assert found == sorted(found) and found[0] == found[1] == 0 and found[-1] <= len(text)
    for token, offset in zip(ids[1:-1], found[1:-1], strict=True):
        name = tokenizer.token_text(token)
        raw = bytes_of_name(name)
        if name.startswith("bytes:"):
            assert raw in text[offset].encode() or raw[:1] in text[offset].encode()
        elif name != "<unk>":
            assert text.startswith(name, offset) or text.startswith(name.lstrip(), offset)


def test_a_character_of_several_tokens_has_one_offset():
    tokenizer = Tokenizer(wrap(byte_level()))
    offsets = TextOffsets(tokenizer)
    ids = tokenizer.encode("aфb")
    assert [offsets.push(token) for token in ids] == [0, 1, 1, 2]
    names = [tokenizer.token_text(token) for token in ids]
    assert names == ["a", "bytes:\\xd1", "bytes:\\x84", "b"]
