"""The description of the measuring machine."""

from pathlib import Path

import pytest

from bench.core.host_info import stolen_s


def test_time_that_the_host_took_is_read_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 20 30 40 50 60 70 8050 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    assert stolen_s(stat) == 80.5


def test_without_stolen_time_in_the_system_there_is_no_figure(tmp_path):
    (tmp_path / "old").write_text("cpu  10 20 30 40\n")
    assert stolen_s(tmp_path / "old") is None
    assert stolen_s(tmp_path / "missing") is None


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="no /proc/stat here")
def test_a_linux_tells_it():
    assert stolen_s() is not None
