"""The fixtures that tests of admission share."""

from __future__ import annotations

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from tests.cluster.admission.queue_pools import Pools, make_placement


@pytest.fixture
def pools():
    return Pools()


@pytest.fixture
def placement():
    return make_placement()


@pytest.fixture
def queue(pools, placement):
    return AdmissionQueue(pools, placement, max_waiting=2)
