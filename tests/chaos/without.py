"""Takes each kind of handling away, in a copy of the code, and shows that its test then fails.

python -m tests.chaos.without [NAME ...]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.handling import HANDLINGS, Handling

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 60
_FAILED = 1  # pytest's exit code for tests that failed


def main(names: list[str]) -> int:
    """Try all handlings, or those of these names; 1 where a test did not notice."""
    chosen = [one for one in HANDLINGS if not names or one.name in names]
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        for handling in chosen:
            noticed = not survives(handling, Path(folder))
            print(
                f"{'fails' if noticed else 'DOES NOT FAIL'} without it: {handling.name}", flush=True
            )
            unnoticed += [] if noticed else [handling.test]
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} tests fail without their handling")
    return bool(unnoticed)


def copied(folder: Path) -> None:
    """Copy the files that git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        if (ROOT / line).is_file():
            (folder / line).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / line, folder / line)


def survives(handling: Handling, folder: Path) -> bool:
    """Whether the test passes although the handling is gone from the copy in `folder`."""
    file = folder / handling.file
    text = file.read_text()
    file.write_text(text.replace(handling.code, handling.without))
    options = ["-q", "-x", "-p", "no:cacheprovider", "-o", f"timeout={_TIMEOUT_S}"]
    command = [sys.executable, "-m", "pytest", *options, handling.test]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    if done.returncode not in (0, _FAILED):
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
