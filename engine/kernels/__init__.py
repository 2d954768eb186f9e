"""The C++ operations: torch's extension loader builds them once and keeps them in its cache."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import first_line

_FOLDER = Path(__file__).with_name("cpu")
# Sums keep their order. Otherwise a token's numbers would depend on the size of its batch.
_MATH = ("-ffast-math", "-fno-finite-math-only", "-fno-associative-math")
_FLAGS = ("-O3", "-fopenmp", "-std=c++20", *_MATH)


@dataclass(frozen=True, slots=True)
class Build:
    """A way to compile the operations. They are then in `torch.ops` under `library`."""

    library: str
    machine: str
    defines: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """The compiler's flags."""
        machine, library = f"-march={self.machine}", f"-DTANDEM_LIBRARY={self.library}"
        return [*_FLAGS, machine, library, *self.defines]

    @property
    def path(self) -> Path:
        """The build's file in the cache; its name has a digest of all inputs of the build."""
        digest = hashlib.sha256(torch.__version__.encode())
        for part in (*self.flags, processor()):
            digest.update(part.encode())
        for source in sorted(_FOLDER.iterdir()):
            digest.update(source.read_bytes())
        return _cache() / f"{self.library}_{digest.hexdigest()[:16]}.so"


NATIVE = Build("tandem_cpu", "native")
# The builds of processors without AVX-512, and without AVX2, for tests on other processors.
AVX2 = Build("tandem_cpu_avx2", "x86-64-v3")
PLAIN = Build("tandem_cpu_plain", "x86-64-v2")
# Products that this processor may not choose (see cpu/products.h), for tests.
PAIRS = Build("tandem_cpu_pairs", "native", ("-DTANDEM_PRODUCTS=kPairs",))
WIDENED = Build("tandem_cpu_widened", "native", ("-DTANDEM_PRODUCTS=kWidened",))


def is_built(build: Build = NATIVE) -> bool:
    """Whether the operations can be loaded without compiling."""
    return build.path.is_file()


@functools.cache
def why_not_loaded(build: Build = NATIVE) -> str | None:
    """None once the operations are in `torch.ops`; else why they cannot be loaded here.

    Compiles them first if they are not in the cache, which takes about half a minute. Of several
    processes one compiles, and the others wait for it.
    """
    path = build.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if path.is_file():
                torch.ops.load_library(path)
            else:
                _compile(build, path)
    except (OSError, RuntimeError, ImportError) as error:
        return f"the C++ operations did not build: {first_line(error)}"
    return None


def wake(step: torch.Tensor) -> None:
    """Wake the operations of other engines that wait for the end of this step.

    `step` is a tensor as in `engine.cpu.core_sharing.Beside`. Where the C++ operations are not
    loaded, none is woken; the other engines check by themselves after a while.
    """
    if hasattr(torch.ops.tandem_cpu, "wake"):
        torch.ops.tandem_cpu.wake(step)


def _compile(build: Build, path: Path) -> None:
    """Build in a separate folder and load; the cache never has an incomplete build."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise OSError("no C++ compiler on the PATH")
    from torch.utils.cpp_extension import load

    with tempfile.TemporaryDirectory(dir=path.parent) as folder, _ninja_on_path():
        load(
            name=path.stem,
            sources=[str(_FOLDER / "operations.cpp")],
            extra_cflags=build.flags,
            build_directory=folder,
            is_python_module=False,
        )
        (Path(folder) / path.name).replace(path)


def _cache() -> Path:
    from torch.utils.cpp_extension import get_default_build_root

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()) / "tandem"


@functools.cache
def processor() -> str:
    """The processor's features, as the kernel lists them; a home folder may serve several hosts."""
    with Path("/proc/cpuinfo").open() as file:
        lines = (line for line in file if line.startswith(("flags", "Features")))
        return next(lines, "").partition(":")[2]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep a file locked; the lock ends with the process at the latest."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
