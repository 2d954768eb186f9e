"""docs/reference/refusals.md: the reasons of refusals, with their origin and retry time."""

from __future__ import annotations

from cluster.admission.refusal_reasons import REASONS
from cluster.reference.markdown import code, table

_INTRODUCTION = """\
# Refusal reasons

`make reference` writes this page from the code. [Choose budgets](../howto/choose-budgets.md) says
what a client gets with a refusal.

A refusal is the error `Overloaded` or `Refused`: HTTP 429, gRPC `RESOURCE_EXHAUSTED`. Its message
says the reason in words. `tandem_refused_total{reason}` and the field `reason` of the request log
have the names of this page. A request may come back at its retry time.
"""


def page() -> str:
    """The whole page."""
    meanings = [
        (code(name), one.meaning, one.decided_by, one.retry) for name, one in REASONS.items()
    ]
    helps = [(code(name), one.remedy, one.message) for name, one in REASONS.items()]
    return "\n".join(
        [
            _INTRODUCTION,
            table(("reason", "meaning", "decided by", "retry time"), meanings),
            "## What helps\n",
            table(("reason", "what helps", "message to the client"), helps),
        ]
    )
