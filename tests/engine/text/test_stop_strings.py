"""The stop scanner against a search of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stop_strings import StopScanner

WORDS = st.text("ab", min_size=1, max_size=6)


def first_end(text, stops):
    """(where the text ends, how much of it was needed to know), or None."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


def may_become_a_stop(text, stops):
    """The length of the longest end of the text that opens a stop string."""
    return max(
        length
        for stop in [*stops, "x"]
        for length in range(len(stop))
        if text.endswith(stop[:length])
    )


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(st.text("abc", max_size=4), max_size=12))
def test_shows_all_that_is_certain_and_nothing_else(stops, pieces):
    scanner = StopScanner(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += scanner.push(piece)
        found = first_end(text, stops)
        assert scanner.found == (found is not None)
        if found:
            assert shown == text[: found[0]]
            assert scanner.flush() == ""
            return
        assert shown == text[: len(text) - may_become_a_stop(text, stops)]
    assert shown + scanner.flush() == text


def test_a_stop_string_that_begins_inside_a_failed_one_is_found():
    scanner = StopScanner(["aab"])
    assert [scanner.push(c) for c in "aaab"] == ["", "", "a", ""]
    assert scanner.found


def test_the_longest_of_the_stop_strings_that_are_complete_at_once_counts():
    for stops in (["end", "the end"], ["the end", "end"]):
        assert StopScanner(stops).push("at the end.") == "at "


def test_without_stop_strings_no_text_is_withheld():
    assert StopScanner([]).push("anything") == "anything"


@settings(deadline=None)
@given(WORDS, st.lists(st.text("abc", max_size=4), max_size=12), st.integers(1, 3))
def test_a_match_counts_only_behind_a_text_that_may_be_the_whole(stop, pieces, every):
    scanner = StopScanner([stop], lambda text: len(text) % every == 0)
    text, shown = "".join(pieces), ""
    for piece in pieces:
        if not scanner.found:
            shown += scanner.push(piece)
    ends = (end for end in range(len(text) + 1) if text[:end].endswith(stop))
    first = next((end for end in ends if (end - len(stop)) % every == 0), None)
    assert scanner.found == (first is not None)
    if first is None:
        assert shown + scanner.flush() == text
    else:
        assert shown == text[: first - len(stop)]
