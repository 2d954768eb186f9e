"""Which errors count against the service: in the canary's judge, and in the alert on errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.admission.refusal_reasons import REASONS
from cluster.admission.refusals import Refused, is_fault
from cluster.api.error_mapping import status_of
from cluster.reference.errors import tree
from engine.errors import Overloaded

ALERTS = Path(__file__).parents[3] / "helm/tandem/files/alerts/tandem.yaml"
KINDS = [kind for _, kind in tree() if not issubclass(kind, Refused)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_of_the_client_never_counts(kind):
    """What HTTP answers with 4xx is the client's error, only 429 is not: the service is full."""
    error = kind("x")
    full = isinstance(error, Overloaded)
    assert is_fault(error) == (full or status_of(error).http >= 500)


@pytest.mark.parametrize("reason", REASONS)
def test_a_refusal_for_a_quota_never_counts(reason):
    quota = reason.startswith("tenant_") or reason == "starting"
    assert is_fault(Refused("x", reason=reason)) != quota


def test_the_alert_on_errors_counts_no_error_of_the_client():
    [outcomes] = re.findall(r'requests_total\{outcome=~"([^"]+)"', ALERTS.read_text())
    kinds = {kind.__name__: kind for kind in KINDS}
    assert all(is_fault(kinds[name]("x")) for name in outcomes.split("|"))
