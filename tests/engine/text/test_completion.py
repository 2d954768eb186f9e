"""Streaming text against the whole text, decoded and searched at once."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Internal
from engine.text.completion import ChoiceText, Piece
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import SamplingParams
from tests.engine.text.test_tokenizer import BUILDERS, byte_level, sentencepiece_like, wrap

TOKENIZERS = {build.__name__: Tokenizer(wrap(build())) for build in BUILDERS}
NAMES = st.sampled_from(sorted(TOKENIZERS))
HARD = [
    "😀",
    "👨‍👩‍👧‍👦",
    "漢字",
    "é",
    "e\u0301",
    "\ufffd",
    "🇩🇪",
    "  ",
    " the end",
    "<think>",
    "\n",
    "</s>",
]
TEXTS = st.lists(st.text(max_size=8) | st.sampled_from(HARD), max_size=12).map("".join)
LONG = 10**6


def start(tokenizer, *, max_tokens=LONG, context_tokens=LONG, prompt=(), **sampling):
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return ChoiceText(tokenizer, list(prompt), params, tokenizer.eos_ids, context_tokens)


def stream(completion, ids):
    """Pieces up to the end."""
    pieces = []
    for token in ids:
        pieces.append(completion.push(token))
        if pieces[-1].finish_reason:
            break
    return pieces


def text_of(pieces):
    return "".join(piece.text for piece in pieces)


def first_stop(text, stops):
    """Where the text ends: before the stop string that is complete first, the longest of them."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


@settings(max_examples=300, deadline=None)
@given(NAMES, TEXTS)
def test_pieces_join_to_the_decoded_text(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    if ids:
        pieces = stream(start(tokenizer, max_tokens=len(ids), ignore_eos=True), ids)
        assert len(pieces) == len(ids)
        assert text_of(pieces) == tokenizer.decode(ids)
        assert pieces[-1].finish_reason == "length"


@settings(max_examples=300, deadline=None)
@given(NAMES, st.data())
def test_pieces_join_for_any_ids_at_all(name, data):
    tokenizer = TOKENIZERS[name]
    token = st.integers(0, tokenizer.vocabulary + 2)
    if name == "sentencepiece_like":
        # Fewer raw bytes, so that their runs mostly stay shorter than the longest withheld run.
        token = st.one_of(token, st.integers(255, tokenizer.vocabulary - 1))
    ids = data.draw(st.lists(token, min_size=1, max_size=80))
    heard = [token for token in ids if not tokenizer.is_silent(token)]
    runs = [len(list(run)) for byte, run in itertools.groupby(heard, tokenizer.is_byte) if byte]
    if max(runs, default=0) < 32:
        pieces = stream(start(tokenizer, max_tokens=len(ids), ignore_eos=True), ids)
        assert text_of(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize("before", range(26, 38))
def test_a_long_run_of_bytes_is_cut_between_characters_also_behind_a_replacement(before):
    tokenizer = TOKENIZERS["sentencepiece_like"]
    text = "0" * before + "\ufffd\U00010000\ufffd"
    ids = tokenizer.encode(text)
    pieces = stream(start(tokenizer, max_tokens=len(ids)), ids)
    assert text_of(pieces) == text


@settings(max_examples=200, deadline=None)
@given(NAMES, TEXTS)
def test_only_the_last_piece_may_have_an_incomplete_character(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text.replace("\ufffd", ""))
    pieces = stream(start(tokenizer, ignore_eos=True), ids)
    assert "\ufffd" not in text_of(pieces)
    assert tokenizer.decode(ids).startswith(text_of(pieces))


@settings(max_examples=400, deadline=None)
@given(NAMES, TEXTS, st.data())
def test_stop_strings_end_the_text_where_the_whole_text_says(name, text, data):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    if not whole:
        return
    inside = st.integers(0, len(whole) - 1).flatmap(
        lambda at: st.integers(at + 1, min(len(whole), at + 9)).map(lambda end: whole[at:end])
    )
    near = inside.map(lambda stop: stop + "q")
    stops = data.draw(st.lists(inside | near | st.text(min_size=1, max_size=3), min_size=1))
    completion = start(tokenizer, max_tokens=len(ids), stop=tuple(stops[:16]), ignore_eos=True)
    pieces = stream(completion, ids)
    end = first_stop(whole, stops[:16])
    assert text_of(pieces) == (whole if end is None else whole[:end])
    assert pieces[-1].finish_reason == ("length" if end is None else "stop")
    for shown in itertools.accumulate(piece.text for piece in pieces):
        assert whole.startswith(shown)


@settings(max_examples=100, deadline=None)
@given(NAMES, TEXTS, st.integers(0, 30), st.lists(st.text("abthe d", min_size=1), max_size=3))
def test_pushing_again_rebuilds_the_state(name, text, cut, stops):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    first = start(tokenizer, stop=tuple(stops))
    pieces = stream(first, ids)
    second = start(tokenizer, stop=tuple(stops))
    assert (
        stream(second, ids[:cut]) + ([] if second.finish_reason else stream(second, ids[cut:]))
        == pieces
    )
    assert second.output_tokens == first.output_tokens == len(pieces)


def ids_of(name, text):
    return TOKENIZERS[name], TOKENIZERS[name].encode(text)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_a_token_gives_its_text_at_once(name):
    tokenizer, ids = ids_of(name, "the end the end the end")
    assert all(piece.text for piece in stream(start(tokenizer), ids))


def test_a_character_is_withheld_until_whole():
    tokenizer, ids = ids_of("byte_level", "ж")
    assert len(ids) == 2
    assert stream(start(tokenizer), ids) == [Piece(""), Piece("ж")]


def test_an_incomplete_character_is_released_at_the_end():
    tokenizer, ids = ids_of("byte_level", "ж")
    assert start(tokenizer, max_tokens=1).push(ids[0]) == Piece("\ufffd", "length")
    completion = start(tokenizer)
    assert completion.push(ids[0]) == Piece("")
    assert completion.push(0) == Piece("\ufffd", "stop")


def test_text_that_may_become_a_stop_string_is_withheld():
    tokenizer = TOKENIZERS["byte_level"]
    completion = start(tokenizer, stop=("fzz",))
    first, second = tokenizer.encode("f")[0], tokenizer.encode("z")[0]
    assert completion.push(first) == Piece("")
    assert completion.push(second) == Piece("")
    assert completion.push(first) == Piece("fz")
    assert completion.push(0) == Piece("f", "stop")


def test_the_stop_string_and_what_follows_is_not_shown():
    tokenizer, ids = ids_of("byte_level", "over the end, the")
    pieces = stream(start(tokenizer, stop=("nd,", " t")), ids)
    assert text_of(pieces) == "over"
    assert pieces[-1].finish_reason == "stop"


def test_end_and_stop_tokens_give_no_text():
    tokenizer, ids = ids_of("byte_level", "fox")
    assert start(tokenizer).push(0) == Piece("", "stop")
    stopped = start(tokenizer, stop_token_ids=(ids[-1],), ignore_eos=True)
    pieces = stream(stopped, [0, *ids])
    assert pieces[0] == Piece("") and pieces[-1] == Piece("", "stop")
    assert len(pieces) == len(ids) + 1


@pytest.fixture
def decoded(monkeypatch):
    """How many tokens each call decodes at once."""
    lengths, decode = [], Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids)
    )
    return lengths


def test_ignored_end_tokens_stay_silent_and_cost_nothing(decoded):
    tokenizer, ids = ids_of("sentencepiece_like", "the end")
    completion = start(tokenizer, ignore_eos=True)
    pieces = stream(completion, [0] * 1000 + ids + [0] * 1000 + ids)
    assert max(decoded) < 20
    assert text_of(pieces) == tokenizer.decode(ids + ids) == "the end the end"


def test_ends_at_max_tokens_or_a_full_context():
    tokenizer, ids = ids_of("byte_level", "the end the end")
    assert len(ids) >= 4
    assert [p.finish_reason for p in stream(start(tokenizer, max_tokens=2), ids)] == [
        None,
        "length",
    ]
    full = start(tokenizer, context_tokens=10, prompt=range(7))
    assert [p.finish_reason for p in stream(full, ids)] == [None, None, "length"]
    both = start(tokenizer, max_tokens=1, stop=("the",))
    assert both.push(ids[0]) == Piece("", "stop")
    assert start(tokenizer, max_tokens=1).push(0) == Piece("", "stop")


def test_nothing_comes_after_the_end():
    completion = start(TOKENIZERS["byte_level"])
    completion.push(0)
    with pytest.raises(Internal):
        completion.push(1)


def test_bytes_that_never_make_a_character_do_not_pile_up(decoded):
    tokenizer = Tokenizer(wrap(byte_level()))
    broken = tokenizer.encode("ж")[1]  # a continuation byte
    completion = start(tokenizer)
    pieces = stream(completion, [broken] * 500)
    assert text_of(pieces) == "\ufffd" * 499
    assert max(decoded) < 20


def test_a_long_run_of_raw_bytes_is_cut_between_characters(decoded):
    tokenizer = Tokenizer(wrap(sentencepiece_like()))
    text = "the " + "漢字" * 40 + " the end"
    ids = tokenizer.encode(text)
    pieces = stream(start(tokenizer), ids)
    assert text_of(pieces) == text
    assert max(len(piece.text) for piece in pieces) < 20
    broken = [*tokenizer.encode("the"), *[tokenizer.encode("漢")[-1]] * 200]
    completion, before = start(tokenizer), len(decoded)
    assert text_of(stream(completion, broken)).startswith("the" + "\ufffd" * 100)
    assert max(decoded[before:]) < 60


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_by_id_or_length_is_known_before_the_text(ignore_eos):
    tokenizer = TOKENIZERS["byte_level"]
    eos = next(iter(tokenizer.eos_ids))
    stop, other = (token for token in range(3) if token != eos)
    completion = start(tokenizer, max_tokens=3, stop_token_ids=(stop,), ignore_eos=ignore_eos)
    assert completion.ends_with(stop)
    assert completion.ends_with(eos) is not ignore_eos
    for _ in range(2):
        assert not completion.ends_with(other)
        completion.push(other)
    assert completion.ends_with(other)


@pytest.mark.parametrize("build", BUILDERS)
def test_special_tokens_give_text_where_they_are_shown(build):
    tokenizer = Tokenizer(wrap(build()))
    special = tokenizer.encode("<s>")[-1]
    ids = [*tokenizer.encode("the end"), special, *tokenizer.encode("the end"), special]
    hidden = text_of(stream(start(tokenizer, max_tokens=len(ids)), ids))
    shown = start(tokenizer, max_tokens=len(ids), shown_token_ids=(special,))
    assert "<s>" not in hidden
    assert text_of(stream(shown, ids)).replace(" ", "") == "theend<s>theend<s>"
