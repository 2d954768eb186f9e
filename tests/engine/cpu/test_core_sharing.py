"""Threads by the engines that share the cores: real files, real locks, real processes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch

from engine import kernels
from engine.cpu import core_sharing as cores_module
from engine.cpu.core_sharing import BusyTimes, CoreSharing, NeighbourEngine, usable_cores
from engine.types.urgency import Urgency

LARGE = 1 << 30


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(cores_module, "usable_cores", lambda: 4)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sharing(folder, weight_bytes=LARGE, **times):
    """An engine to which every step counts as just ended, however slow the machine.

    0.0, the machine's boot, counts as no step.
    """
    usual = {"recent_s": time.monotonic() - 1.0, "scan_s": 0.0}
    return CoreSharing(weight_bytes, folder, BusyTimes(**(usual | times)))


def test_an_engine_alone_has_all_cores(tmp_path):
    alone = sharing(tmp_path)
    alone.enter()
    assert torch.get_num_threads() == 4
    alone.leave()


def test_small_models_take_one_thread(tmp_path):
    sharing(tmp_path, 1 << 20).enter()
    assert torch.get_num_threads() == 1


def test_the_busy_share_and_the_idle_do_not_count(tmp_path):
    first, second, _idle = (sharing(tmp_path) for _ in range(3))
    first.enter()
    assert torch.get_num_threads() == 4
    second.enter()
    assert torch.get_num_threads() == 2
    first.enter()
    assert torch.get_num_threads() == 2


def test_engines_that_share_cores_have_one_name_for_them(tmp_path, monkeypatch):
    first, second = sharing(tmp_path), sharing(tmp_path)
    assert first.shared_name == second.shared_name != ""
    (tmp_path / "elsewhere").mkdir()
    assert sharing(tmp_path / "elsewhere").shared_name not in ("", first.shared_name)
    assert sharing(tmp_path, 1 << 20).shared_name == ""  # takes one of four
    monkeypatch.setattr(cores_module, "usable_cores", lambda: 1)
    assert sharing(tmp_path, 1 << 20).shared_name == first.shared_name


def test_an_engine_counts_for_a_while_after_its_step(tmp_path):
    first, second, third = sharing(tmp_path), sharing(tmp_path), sharing(tmp_path, recent_s=0.0)
    second.enter()
    second.leave()
    first.enter()
    assert torch.get_num_threads() == 2
    first.leave()
    third.enter()
    assert torch.get_num_threads() == 4


def test_a_share_follows_the_neighbours_within_a_step(tmp_path):
    first, second = sharing(tmp_path), sharing(tmp_path)
    first.enter()
    second.enter()
    first.adapt()
    assert torch.get_num_threads() == 2
    second.leave()
    first.adapt()
    assert torch.get_num_threads() == 2
    second.yield_cores()
    first.adapt()
    assert torch.get_num_threads() == 4


def test_an_operation_sees_others_begin_and_end_while_it_runs(tmp_path):
    first, second = sharing(tmp_path), sharing(tmp_path)
    first.enter()
    beside = first.beside()
    [step] = beside.steps
    assert beside.cores == 4 and step.tolist() == [0.0, 0.0]
    second.enter()
    began, ended = step.tolist()
    assert began > 0.0 == ended
    second.leave()
    assert step[1] >= step[0] == began
    second.yield_cores()
    assert step.tolist() == [0.0, 0.0]


def test_an_operation_counts_no_stuck_engine_and_a_small_model_none(tmp_path):
    first, second = sharing(tmp_path), sharing(tmp_path)
    small, hasty = sharing(tmp_path, 1 << 20), sharing(tmp_path, longest_step_s=0.0)
    second.enter()
    for one in (first, small, hasty):
        one.adapt()
    assert len(first.beside().steps) == 3 and small.beside().steps == []
    assert [step.tolist() for step in hasty.beside().steps] == [[0.0, 0.0]] * 2


def test_the_greatest_urgency_of_the_busy_is_seen_by_the_others(tmp_path):
    first, second, third = (sharing(tmp_path) for _ in range(3))
    first.enter()
    assert first.urgency is Urgency.NONE
    second.enter(Urgency.PROMPTS)
    third.enter(Urgency.PRESSED)
    first.adapt()
    assert first.urgency is Urgency.PRESSED and third.urgency is Urgency.PROMPTS
    third.leave()
    assert first.urgency is Urgency.PRESSED
    third.yield_cores()
    assert first.urgency is Urgency.PROMPTS
    second.enter()
    assert first.urgency is Urgency.NONE


def test_urgency_is_asked_by_one_thread_while_another_finds_a_neighbour(tmp_path, monkeypatch):
    first, _second = sharing(tmp_path), sharing(tmp_path)
    first.adapt()
    _third = sharing(tmp_path)
    asked, scanned, lock = threading.Event(), threading.Event(), fcntl.flock

    def urgency(neighbour, now):
        asked.set()
        assert scanned.wait(10)
        return Urgency.PROMPTS

    def wait_and_lock(file, how):
        asked.wait(10)
        lock(file, how)

    def scan():
        first.adapt()
        scanned.set()

    monkeypatch.setattr(NeighbourEngine, "urgency", urgency)
    monkeypatch.setattr(fcntl, "flock", wait_and_lock)
    with ThreadPoolExecutor() as threads:
        scanning = threads.submit(scan)
        assert threads.submit(lambda: first.urgency).result(10) is Urgency.PROMPTS
        scanning.result(10)


def test_a_killed_neighbour_is_forgotten(tmp_path):
    code = f"""
        import signal
        from pathlib import Path
        from engine.cpu.core_sharing import CoreSharing
        neighbour = CoreSharing({LARGE}, Path({str(tmp_path)!r}))
        neighbour.enter()
        print("in a step", flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "in a step\n"
        mine = sharing(tmp_path)
        mine.enter()
        assert torch.get_num_threads() == 2
        process.send_signal(signal.SIGKILL)
    mine.enter()
    assert torch.get_num_threads() == 4
    assert len(list(tmp_path.iterdir())) == 1


def test_an_engine_that_is_gone_leaves_nothing_and_a_file_in_the_making_is_left_alone(tmp_path):
    (tmp_path / ".in-the-making").write_bytes(b"")
    first, second = sharing(tmp_path), sharing(tmp_path)
    first.enter()
    del first
    second.enter()
    assert torch.get_num_threads() == 4
    assert sorted(path.name for path in tmp_path.iterdir())[0] == ".in-the-making"
    assert len(list(tmp_path.iterdir())) == 2


def test_strange_files_do_no_harm(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    mine = sharing(tmp_path)
    mine.enter()
    assert torch.get_num_threads() == 4


def test_usable_cores_are_some_of_the_machine():
    assert 1 <= usable_cores() <= os.cpu_count()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="waits by Linux's futex")
def test_an_engine_that_yields_its_cores_wakes_operations_that_wait_for_it(tmp_path):
    """As a thread of an operation waits: on the first half of when the step ended."""
    if (why := kernels.why_not_loaded()) is not None:
        pytest.skip(why)
    first, second = sharing(tmp_path), sharing(tmp_path)
    second.enter()
    first.enter()
    [step] = first.beside().steps
    libc, known = ctypes.CDLL(None, use_errno=True), int(step[1:].view(torch.int32)[0])
    futex = {"x86_64": 202, "aarch64": 98}[platform.machine()]
    most = (ctypes.c_long * 2)(30, 0)
    word = ctypes.c_void_p(step.data_ptr() + 8)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(libc.syscall, futex, word, 0, known, most, None, 0)
        while not waiting.done():
            second.yield_cores()
            wait([waiting], timeout=0.001)
    assert waiting.result() == 0
