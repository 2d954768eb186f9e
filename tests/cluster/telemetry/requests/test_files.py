"""The rows in files: JSON lines, other files by size and age, and what goes wrong with a disk."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import stat
import threading
from io import FileIO
from itertools import count
from pathlib import Path

import pytest
import zstandard

from cluster.config.request_log import RequestLogConfig
from cluster.telemetry.requests import files
from cluster.telemetry.requests.files import RowFiles
from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.store import RequestStore
from engine.errors import ConfigError
from tests.eventually import wait_until
from tests.metrics_page import recorded


def rows_in(folder: Path) -> list[dict[str, object]]:
    texts = [path.read_text() for path in folder.glob("*.jsonl")]
    for path in folder.glob("*.jsonl.zst"):
        with path.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as plain:
            texts.append(plain.read().decode())
    return [json.loads(line) for text in texts for line in text.splitlines()]


class Written:
    """Rows that go to files of a folder."""

    def __init__(self, folder: Path, gather_s: float = 0.5, **config: object) -> None:
        self.store = RequestStore()
        self.files = RowFiles(
            RequestLogConfig(**config),  # type: ignore[arg-type]
            str(folder),
            "router#a/b",
            self.store.get,
            gather_s=gather_s,
        )

    def add(self, name: str) -> int:
        choice = ChoiceRow(0, "local", ttft_s=0.1, queue_s=0.0, prefill_s=0.1)
        number = self.store.add(RequestRow(name, "chat", "v", "ok", choices=(choice,)))
        self.files.put(number)
        return number


def test_every_row_is_a_line_that_its_user_alone_can_read(tmp_path):
    written = Written(folder := tmp_path / "rows")
    number = written.add("r-1")
    written.add("r-2")
    written.store.vacated(number, 0.25)
    written.files.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (packed,) = folder.iterdir()
    assert packed.name.startswith("requests-router%23a%2Fb-") and packed.suffix == ".zst"
    assert stat.S_IMODE(packed.stat().st_mode) == 0o600
    found = rows_in(folder)
    assert [row["request_id"] for row in found] == ["r-1", "r-2"]
    assert found[0]["time_to_cancel_s"] == 0.25
    assert found[0]["choices"][0]["ttft_s"] == 0.1  # type: ignore[index]


def test_what_a_killed_router_left_is_compressed_and_the_oldest_files_go(tmp_path):
    for name in ("requests-x-1.jsonl", "requests-x-2.jsonl", "requests-x-3.jsonl"):
        (tmp_path / name).write_text('{"request_id": "left"}\n')
    (tmp_path / "other.jsonl").write_text("{}\n")
    written = Written(tmp_path, keep_files=2)
    written.files.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["other.jsonl", "requests-x-2.jsonl.zst", "requests-x-3.jsonl.zst"]


def test_a_file_of_a_living_router_is_left_alone(tmp_path):
    file = tmp_path / "requests-x-1.jsonl"
    with file.open("w") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        Written(tmp_path).files.close()
        assert list(tmp_path.iterdir()) == [file]
    Written(tmp_path).files.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".zst"]


def test_a_full_file_is_followed_by_another(tmp_path, monkeypatch):
    taken, get = threading.Event(), RequestStore.get

    def noted(store, number):
        if number == 20:
            taken.set()
        return get(store, number)

    monkeypatch.setattr(RequestStore, "get", noted)
    written = Written(tmp_path, gather_s=0.0, file_bytes=1024)
    for number in range(20):
        written.add(f"r-{number}")
    assert taken.wait(10)
    for number in range(20, 40):
        written.add(f"r-{number}")
    written.files.close()
    assert len(list(tmp_path.glob("*.zst"))) > 1
    assert {row["request_id"] for row in rows_in(tmp_path)} == {f"r-{n}" for n in range(40)}


def test_a_folder_that_cannot_be_written_loses_rows_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    with recorded() as page:
        written = Written(tmp_path / "file" / "folder")
        written.add("r-1")
        written.files.close()
        assert page.value("tandem_request_log_lost_total") == 1


def test_a_disk_that_was_full_for_a_while_leaves_whole_lines(tmp_path, monkeypatch):
    full, tried = threading.Event(), threading.Event()
    full.set()

    class SmallDisk(FileIO):
        def write(self, data):
            if not full.is_set():
                return super().write(data)
            super().write(data[: len(data) // 2])
            tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "FileIO", SmallDisk)
    with recorded() as page:
        written = Written(tmp_path, gather_s=0.0)
        written.add("lost")
        assert tried.wait(10)
        full.clear()
        written.add("kept")
        written.files.close()
        assert page.value("tandem_request_log_lost_total") == 1
    assert [row["request_id"] for row in rows_in(tmp_path)] == ["kept"]


def test_rows_go_on_in_another_file_where_somebody_removed_the_present_one(tmp_path):
    folder, number = tmp_path / "rows", count()
    written = Written(folder, gather_s=0.0)

    def another_file() -> bool:
        written.add(f"r-{next(number)}")
        return any(one.stat().st_size for one in folder.glob("*.jsonl"))

    wait_until(another_file)
    shutil.rmtree(folder)
    wait_until(another_file)
    (present,) = folder.glob("*.jsonl")
    present.unlink()
    wait_until(another_file)
    written.add("kept")
    written.files.close()
    assert rows_in(folder)[-1]["request_id"] == "kept"
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"folder": ""}, {"file_bytes": 1}, {"keep_files": 0}, {"file_s": 0}]
)
def test_the_configuration_is_checked(wrong):
    with pytest.raises((ConfigError, ValueError)):
        RequestLogConfig(**wrong)
