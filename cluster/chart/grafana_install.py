"""The dashboard for the Grafana that Ray's dashboard embeds."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cluster.chart.dashboard import text

log = logging.getLogger(__name__)

# The folder of Ray's own dashboards, which its Grafana reads.
_FOLDER_VARIABLE = "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR"
_FOLDER = Path("metrics", "grafana", "dashboards")
_NAME = "tandem_grafana_dashboard.json"


def place_dashboard(session: Path) -> Path | None:
    """Put the dashboard beside Ray's own in a session's folder; None if there is no folder.

    Never fails: nothing that serves depends on it.
    """
    given = os.environ.get(_FOLDER_VARIABLE)
    folder = Path(given) if given else session / _FOLDER
    if not folder.is_dir():
        log.info("Ray has no folder for dashboards", extra={"folder": folder})
        return None
    try:
        (folder / _NAME).write_text(text(), encoding="utf-8")
    except OSError as error:
        log.warning("the dashboard was not written", extra={"reason": str(error)})
        return None
    return folder / _NAME
