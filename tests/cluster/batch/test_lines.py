"""The lines and the concurrency of a batch: each request once, and bad lines are reported."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.batch.concurrency import BatchConcurrency
from cluster.batch.lines import (
    BadLine,
    BatchLine,
    BatchReply,
    error_line,
    read_input,
    result_line,
    successful_results,
)
from cluster.batch.output import BatchOutput
from engine.errors import ConfigError

CHAT = "/v1/chat/completions"


def line(custom_id="a", **changes):
    whole = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"messages": []}}
    return json.dumps(whole | changes).encode() + b"\n"


def test_requests_come_out_in_order_without_those_that_are_done():
    lines = [line("a"), b"\n", line("b", url="/v1/completions", body={"prompt": "x"}), line("c")]
    assert list(read_input(lines, {"a"})) == [
        BatchLine("b", "/v1/completions", {"prompt": "x"}),
        BatchLine("c", CHAT, {"messages": []}),
    ]


@pytest.mark.parametrize(
    ("wrong", "custom_id", "reason"),
    [
        (b"{half\n", None, "not JSON"),
        (b"[1]\n", None, "not a JSON object"),
        (b"\xff\n", None, "not JSON"),
        (line(""), None, "custom_id must be"),
        (line(7), None, "custom_id must be"),
        (line("x", method="GET"), "x", "method must be POST"),
        (line("x", url="/v1/embeddings"), "x", "url must be one of"),
        (line("x", body="text"), "x", "body must be an object"),
        (line("x", body={"stream": True}), "x", "stream is not for batches"),
        (line("a"), None, "custom_id 'a' is that of line 1"),
    ],
)
def test_a_bad_line_is_reported_and_the_others_are_read(wrong, custom_id, reason):
    first, bad, last = read_input([line("a"), wrong, line("b")], ())
    assert (first.custom_id, last.custom_id) == ("a", "b")
    assert isinstance(bad, BadLine)
    assert bad.custom_id == custom_id
    assert bad.message.startswith("line 2: ")
    assert reason in bad.message


def test_a_line_that_doubles_one_that_is_done_is_bad():
    (bad,) = read_input([line("a"), line("a")], {"a"})
    assert isinstance(bad, BadLine)


GOOD = result_line("a", BatchReply(200, "r", {"x": 1}))
RESULTS = st.one_of(
    st.builds(
        lambda name, status: result_line(name, BatchReply(status, "r", {"text": name})),
        st.sampled_from("abcdé"),
        st.sampled_from([200, 400, 500]),
    ),
    st.builds(error_line, st.sampled_from([None, "a", "b"]), st.just("code"), st.text()),
    st.sampled_from([b"\n", b"{}\n", b"null\n", b"\xff\n", b'{"custom_id": "a"\n']),
)


@given(st.lists(RESULTS), st.integers(0, 60))
def test_only_successful_results_are_kept_and_each_once(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"
    whole = b"".join(lines)
    path.write_bytes(whole[: len(whole) - cut] if cut else whole)
    before = list(successful_results(path.read_bytes().splitlines(keepends=True)))
    with BatchOutput(path) as output:
        assert output.done == {custom_id for custom_id, _ in before}
        fresh = result_line("new", BatchReply(200, "r", {}))
        output.add(fresh)
        assert path.read_bytes() == b"".join(line for _, line in before) + fresh
    ids = [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]
    assert len(ids) == len(set(ids))
    assert not path.with_name("out.jsonl.part").exists()


def test_lines_are_in_openais_form():
    assert json.loads(GOOD) == {
        "id": json.loads(GOOD)["id"],
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }
    failed = json.loads(error_line(None, "invalid_line", "line 3: no"))
    assert failed["response"] is None
    assert failed["error"] == {"code": "invalid_line", "message": "line 3: no"}
    assert json.loads(result_line("a", BatchReply(200, "", "\ud800")))["response"]["body"] == "?"
    written = result_line("a", BatchReply(200, "", "\x85\u2028\u2029")).decode()
    assert len(written.splitlines()) == 1
    assert json.loads(written)["response"]["body"] == "\x85\u2028\u2029"


def test_one_batch_writes_to_a_file(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"half")
    with BatchOutput(path), pytest.raises(ConfigError, match="another batch"):
        BatchOutput(path)
    with BatchOutput(path) as again:
        assert again.done == set()
    with pytest.raises(ConfigError, match="No such file"):
        BatchOutput(tmp_path / "nowhere" / "out.jsonl")


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=200))
def test_the_concurrency_stays_within_its_bounds(most, events):
    concurrency, now = BatchConcurrency(most), 0.0
    for answered, passed in events:
        before, now = concurrency.limit, now + passed
        if answered:
            concurrency.answered()
            assert before <= concurrency.limit <= before + 1
        else:
            concurrency.refused(now)
            assert concurrency.limit <= before
        assert 1 <= concurrency.limit <= most


def test_the_concurrency_halves_once_for_simultaneous_refusals_and_recovers():
    concurrency = BatchConcurrency(32)
    for _ in range(2000):
        concurrency.answered()
    assert concurrency.limit == 32
    for _ in range(10):
        concurrency.refused(5.0)
    assert concurrency.limit == 16
    concurrency.refused(7.0)
    assert concurrency.limit == 8
