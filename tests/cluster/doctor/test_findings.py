"""The report of `tandem doctor`."""

from __future__ import annotations

import json

import pytest

from cluster.doctor.findings import Finding, Severity, as_json, as_text, exit_code, looked_at

OK = Finding("model", Severity.OK, "demo")
BAD = Finding("memory", Severity.ERROR, "4 x 9 GiB", "fewer replicas")


@pytest.mark.parametrize(
    ("worst", "code"),
    [(Severity.OK, 0), (Severity.NOTE, 0), (Severity.WARNING, 1), (Severity.ERROR, 2)],
)
def test_the_worst_finding_is_the_exit_code(worst, code):
    assert exit_code([OK, Finding("clock", worst, "1 s"), OK]) == code


def test_what_to_change_stands_below():
    assert as_text([OK, BAD]).splitlines() == [
        "ok       model: demo",
        "error    memory: 4 x 9 GiB",
        "         -> fewer replicas",
    ]
    assert json.loads(as_json([BAD])) == [
        {
            "subject": "memory",
            "severity": "error",
            "found": "4 x 9 GiB",
            "change": "fewer replicas",
        }
    ]


def test_a_finding_is_one_line_and_controls_no_terminal():
    hostile = Finding("model", Severity.OK, "a\x1b[31mb\nok  memory: lots\x9b\u202e")
    (line,) = as_text([hostile]).split("\n")
    assert line.isprintable()


def test_what_cannot_be_looked_at_is_a_warning():
    def look():
        yield OK
        raise OSError("gone")

    first, second = looked_at("disk", look)
    assert first is OK
    assert (second.subject, second.severity) == ("disk", Severity.WARNING)
    assert "OSError: gone" in second.found
