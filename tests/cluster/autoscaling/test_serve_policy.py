"""What Serve is told, from what replicas recorded."""

from types import SimpleNamespace

import pytest

from cluster.autoscaling.serve_policy import DESIRED, follow_desired


def point(at_s, value):
    return SimpleNamespace(timestamp=at_s, value=value)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({DESIRED: {"a": [point(1.0, 2.0), point(3.0, 4.0)], "b": [point(2.0, 3.0)]}}, 4),
        ({DESIRED: {"a": [point(1.0, 2.0)], "b": []}}, 2),
        ({DESIRED: {}}, 3),
        ({"other": {"a": [point(1.0, 9.0)]}}, 3),
        ({}, 3),
        (None, 3),
    ],
)
def test_the_newest_count_is_followed_and_nothing_known_changes_nothing(recorded, expected):
    context = SimpleNamespace(raw_metrics=recorded, target_num_replicas=3)
    assert follow_desired(context) == (expected, {})
