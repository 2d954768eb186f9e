"""The figures of endpoints over many rows, and of several routers together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.router.rows.endpoint_figures import figures_of, joined
from cluster.telemetry.requests.row import ChoiceRow, RequestRow


def row(endpoint="chat", outcome="ok", refused_for=None, ttft_s=None, itl_p95_s=None):
    choice = ChoiceRow(0, "local", "p", "d", ttft_s=ttft_s, itl_p95_s=itl_p95_s)
    choices = () if ttft_s is None else (choice,)
    return RequestRow("r", endpoint, "v", outcome, refused_for=refused_for, choices=choices)


def test_each_request_counts_once():
    rows = [
        row(ttft_s=0.5, itl_p95_s=0.25),
        row(ttft_s=0.25),
        row(outcome="Refused", refused_for="ttft"),
        row(outcome="Internal"),
        row("score"),
    ]
    chat, score = figures_of(rows)
    assert (chat.endpoint, chat.requests, chat.refused, chat.failed) == ("chat", 4, 1, 1)
    assert (list(chat.ttft_s), list(chat.itl_p95_s)) == ([0.5, 0.25], [0.25])
    assert (score.endpoint, score.requests, list(score.ttft_s)) == ("score", 1, [])


ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from(["chat", "score"]),
        st.sampled_from(["ok", "Internal"]),
        ttft_s=st.none() | st.floats(0, 10, width=32),
    ),
    max_size=20,
)


@given(ROWS, ROWS)
def test_two_routers_have_the_figures_of_all_their_rows(mine, theirs):
    assert joined([figures_of(mine), figures_of(theirs)]) == figures_of([*mine, *theirs])
