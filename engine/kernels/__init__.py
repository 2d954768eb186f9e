"""The C++ operations: built once by torch's extension loader, cached, loaded as torch.ops."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("paged_cpu.cpp")
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-ffast-math", "-fno-finite-math-only", "-std=c++20"]


@functools.cache
def why_not_built() -> str | None:
    """None once `torch.ops.tandem_cpu` is there; else why it cannot be built here."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        return "no C++ compiler on the PATH"
    from torch.utils.cpp_extension import load

    try:
        with _ninja_on_path():
            load(
                name=f"tandem_cpu_{torch.__version__.replace('.', '_').replace('+', '_')}",
                sources=[str(_SOURCE)],
                extra_cflags=_FLAGS,
                is_python_module=False,
            )
    except (OSError, RuntimeError, ImportError) as error:
        return f"the C++ operations did not build: {str(error).splitlines()[0]}"
    return None


@contextmanager
def _ninja_on_path() -> Iterator[None]:
    """The extension loader calls `ninja` by name, also where the environment is not activated."""
    import ninja

    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{ninja.BIN_DIR}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
