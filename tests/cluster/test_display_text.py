"""Times as text: in terminals, and the same on the console's page."""

from __future__ import annotations

import pytest

from cluster.display_text import exact_time, known_time, long_time
from tests.e2e.browser import needs_chromium
from tests.e2e.console_page import PageSource, shown

TIMES = {
    0.0: "0.0 ms",
    0.00004: "0.0 ms",
    0.0123: "12.3 ms",
    0.01225: "12.3 ms",
    0.09944: "99.4 ms",
    0.0996: "100 ms",
    0.1125: "113 ms",
    0.61: "610 ms",
    0.9994: "999 ms",
    0.9996: "1.00 s",
    1.125: "1.13 s",
    1.254: "1.25 s",
    12.3: "12.30 s",
    99.4: "99.40 s",
    99.6: "1.7 min",
    120.0: "2.0 min",
    7200.0: "120.0 min",
    141.0: "2.4 min",
    -0.0123: "-12.3 ms",
    -0.1125: "-113 ms",
}
LONG_TIMES = {0.0: "0 s", 2.5: "3 s", 60.0: "60 s", 95.4: "95 s", 179.9: "180 s", 180.0: "3 min"}
LONG_TIMES |= {210.0: "4 min", 900.0: "15 min", 7200.0: "120 min"}
_OF_PAGE = """async ([times, long]) => {
  const { lasting, seconds } = await import("/console/format.js");
  return [times.map(seconds), long.map(lasting)];
}"""


def test_a_measured_time_has_the_digits_that_serve():
    assert {seconds: exact_time(seconds) for seconds in TIMES} == TIMES
    assert [known_time(None), known_time(0.61)] == ["-", "610 ms"]
    assert {seconds: long_time(seconds) for seconds in LONG_TIMES} == LONG_TIMES


@needs_chromium
@pytest.mark.timeout(120)
async def test_the_page_writes_times_as_terminals_do():
    async with shown(PageSource()) as one:
        found = await one.page.evaluate(_OF_PAGE, [list(TIMES), list(LONG_TIMES)])
        assert found == [list(TIMES.values()), list(LONG_TIMES.values())]
