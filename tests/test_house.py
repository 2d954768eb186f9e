"""The house: sizes of files and folders, one name for one thing, and how tests look inside."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("bench", "cluster", "decode_pool", "engine", "kv_transfer", "models", "prefill_pool"),
    *("protos/wire", "tandem_client"),
)

# Class names that stand twice (a leading underscore does not count), each with its reason.
SHARED_NAMES: dict[str, str] = {}

MOST_LINES = 300
MOST_FILES = 18
MOST_PRIVATE_ACCESSES = 79
MOST_SLEEPS = 63


def sources(*folders: str) -> list[Path]:
    """The Python files of these folders that git knows, or would add, without generated ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / line for line in listed.splitlines() if line.endswith(".py")]
    return [path for path in paths if path.is_file() and "_pb2" not in path.name]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for path in sources(*PACKAGES):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert not {name: found for name, found in shared.items() if name not in SHARED_NAMES}
    assert set(SHARED_NAMES) <= set(shared), "a name of the list is shared no more"


def test_no_file_is_long():
    lines = {path: len(path.read_text().splitlines()) for path in sources(*PACKAGES)}
    assert not {str(path): count for path, count in lines.items() if count > MOST_LINES}


def test_a_package_has_three_to_eighteen_files():
    packages = Counter(path.parent for path in sources(*PACKAGES) if path.name != "__init__.py")
    inner = {package: count for package, count in packages.items() if package.parent != ROOT}
    assert not {
        str(package): count for package, count in inner.items() if not 2 <= count <= MOST_FILES
    }


def test_every_package_has_a_docstring():
    packages = {path.parent for path in sources(*PACKAGES)}
    assert not [
        str(package) for package in packages if not ast.get_docstring(tree(package / "__init__.py"))
    ]


def private_accesses(module: ast.Module) -> Iterator[int]:
    """Lines that read, write or patch what begins with an underscore, of other objects."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and not node.attr.startswith("__"):
                yield node.lineno
        elif isinstance(node, ast.Call) and called(node) == "setattr":
            texts = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
            if any(text.rsplit(".", 1)[-1].startswith("_") for text in texts[:2]):
                yield node.lineno


def sleeps(module: ast.Module) -> Iterator[int]:
    """Lines that sleep for more than nothing."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and called(node) == "sleep":
            zero = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if not (zero and node.args[0].value == 0):
                yield node.lineno


def called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_tests_seldom_use_private_names_and_wait_for_events():
    looks = Counter({path: len([*private_accesses(tree(path))]) for path in sources("tests")})
    waits = Counter({path: len([*sleeps(tree(path))]) for path in sources("tests")})
    assert looks.total() <= MOST_PRIVATE_ACCESSES, looks.most_common(9)
    assert waits.total() <= MOST_SLEEPS, waits.most_common(9)
