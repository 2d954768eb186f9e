"""The names at the ends of a chart's lines, on the page in a browser."""

from __future__ import annotations

import pytest

from tests.e2e.browser import needs_chromium
from tests.e2e.console_page import PageSource, endpoint, shown

pytestmark = [needs_chromium, pytest.mark.timeout(120)]
WRITTEN = """() => {
  globalThis.written = new Set();
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
    written.add(text);
    return fillText.call(this, text, ...at);
  };
}"""
APART = """async () => {
  const { spread } = await import("/console/labels.js");
  return [spread([50, 10, 12], 14, 100), spread([99, 98, 97], 14, 100)];
}"""


async def test_each_line_of_a_chart_has_its_name_since_colours_repeat():
    source = PageSource()
    names = [f"endpoint-{number}" for number in range(9)]
    source.settings["endpoints"] = {name: endpoint() for name in names}
    async with shown(source) as one:
        await one.page.evaluate(WRITTEN)
        for number, name in enumerate(names):
            source.ended(f"r{number}", 0.1 + number / 100, endpoint=name)
        written = "(names) => names.every((name) => written.has(name))"
        await one.page.wait_for_function(written, arg=names)
        assert await one.page.evaluate(APART) == [[50, 10, 24], [100, 86, 72]]
