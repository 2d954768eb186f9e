"""The line that each request leaves in the log when it has ended."""

from __future__ import annotations

import logging
from dataclasses import replace

from cluster.telemetry import request_log
from cluster.telemetry.logging_setup import LineFormatter
from cluster.telemetry.request_log import RequestLog
from cluster.telemetry.requests.row import ChoiceRow, RequestRow

ROW = RequestRow("r-1", "report", "3f9a1c02", "ok", "acme")
TIMES = {"queue_s": 0.5, "prefill_s": 0.25, "first_flush_s": 0.125, "ttft_s": 0.875}


def line(row: RequestRow, caplog) -> str:
    with caplog.at_level(logging.INFO, "cluster.telemetry.request_log"):
        request_log.write(row)
    return LineFormatter().format(caplog.records[-1]).split(" ", 1)[1]


def test_a_finished_request_says_where_its_time_went(caplog) -> None:
    choice = ChoiceRow(0, "local", admitted_s=0.1, **TIMES)
    counts = {"prompt_tokens": 7, "completion_tokens": 3, "total_s": 2.0}
    row = replace(ROW, **counts, choices=(choice,))
    assert line(row, caplog) == (
        "info cluster.telemetry.request_log request ended request_id=r-1 endpoint=report "
        "config=3f9a1c02 "
        "outcome=ok tenant=acme prompt_tokens=7 completion_tokens=3 queue_s=0.5 prefill_s=0.25 "
        "first_flush_s=0.125 ttft_s=0.875 total_s=2"
    )


def test_unknown_fields_are_left_out(caplog) -> None:
    assert line(ROW, caplog) == (
        "info cluster.telemetry.request_log request ended request_id=r-1 endpoint=report "
        "config=3f9a1c02 outcome=ok tenant=acme"
    )


def test_a_refusal_says_when_it_was_decided(caplog) -> None:
    refused = RequestRow(
        "r-1", "chat", "3f9a1c02", "Refused", "acme", reason="no capacity", decided_s=0.45
    )
    assert line(refused, caplog).endswith('tenant=acme reason="no capacity" decided_s=0.45')


def test_nothing_is_written_below_its_level(caplog) -> None:
    with caplog.at_level(logging.WARNING, "cluster.telemetry.request_log"):
        request_log.write(ROW)
    assert not caplog.records


def test_no_text_of_a_client_ends_a_line():
    ends = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
    record = logging.makeLogRecord({"msg": f"a{ends}b", "name": "x", "levelname": "INFO"})
    record.reason = f"c{ends}d"
    assert len(LineFormatter().format(record).splitlines()) == 1


async def test_a_row_stays_in_memory_and_hears_when_its_replicas_were_free(caplog):
    log = RequestLog()
    with caplog.at_level(logging.INFO, "cluster.telemetry.request_log"):
        number = log.add(ROW)
    assert [record.getMessage() for record in caplog.records] == ["request ended"]
    log.vacated(number, 0.5)
    assert list(log.store) == [replace(ROW, time_to_cancel_s=0.5)]
    await log.close()
    await log.close()
