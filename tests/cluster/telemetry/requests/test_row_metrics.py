"""Metrics that come from rows."""

from __future__ import annotations

from dataclasses import replace

from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.requests.row_metrics import count_row
from tests.cluster.telemetry.requests.test_stages import CHOICE
from tests.metrics_page import recorded

ROW = RequestRow("r-1", "a name of the client's", "3f9a1c02", "ok")


def test_each_choice_counts_once_under_the_endpoint_s_label():
    lost = replace(CHOICE, straggler_share=0.5, failover_pause_s=0.3)
    with recorded() as page:
        count_row(replace(ROW, choices=(CHOICE, lost)), "chat")
        assert page.value("tandem_straggler_ratio_count", endpoint="chat") == 1
        assert page.value("tandem_failover_pause_seconds_sum", endpoint="chat") == 0.3
