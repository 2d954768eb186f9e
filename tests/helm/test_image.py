"""The Dockerfile, without an engine: what it copies is there, and our own rules hold."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tandem_client
from tests.helm.chart import ROOT, Object, example_objects, objects, pods

TEXT = (ROOT / "Dockerfile").read_text()
PINS = (ROOT / "constraints.txt").read_text()
# One instruction a line: continuations are joined, comments left out.
LINES = [
    line.strip()
    for line in re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", TEXT, flags=re.M)).splitlines()
    if line.strip()
]


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ").strip() for line in LINES if line.startswith(f"{name} ")]


def copied() -> list[str]:
    """The sources of every COPY out of the build's context."""
    found = [line.split() for line in instructions("COPY") if "--from" not in line]
    return [source for line in found for source in line[:-1]]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path at the top into the context; its last match counts."""
    sent = True
    for rule in (ROOT / ".dockerignore").read_text().split():
        if fnmatch.fnmatch(path, rule.removeprefix("!")):
            sent = rule.startswith("!")
    return sent


@pytest.mark.parametrize("path", copied())
def test_every_path_that_is_copied_exists_and_is_sent(path: str) -> None:
    assert (ROOT / path).exists()
    assert is_sent(path)


def test_nothing_else_is_sent() -> None:
    here = {entry.name for entry in ROOT.iterdir()}
    assert {name for name in here if is_sent(name)} <= set(copied())
    assert not is_sent(".git")
    assert not is_sent("tests")


def test_every_package_that_is_installed_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) <= set(copied())
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= set(copied())


def test_bases_are_pinned_to_a_patch_release() -> None:
    defaults = dict(line.split("=", 1) for line in instructions("ARG"))
    for base in instructions("FROM"):
        image = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base.split()[0])
        assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-[a-z-]+", image), image


def test_versions_come_from_the_constraints() -> None:
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert len(installs) == 2
    assert all("constraints.txt" in line for line in installs)
    assert "latest" not in TEXT.lower()
    assert re.search(r"https?://", TEXT) is None


def test_it_runs_as_the_user_that_the_chart_names() -> None:
    last = LINES[[n for n, line in enumerate(LINES) if line.startswith("FROM ")][-1] :]
    (user,) = [line for line in last if line.startswith("USER ")]
    assert user == "USER 1000:1000"
    assert not any(line.startswith("RUN ") for line in last[last.index(user) :])
    uid = {pod["spec"]["securityContext"]["runAsUser"] for name, pod in ray_pods()}
    assert uid == {1000}


def test_both_variants_are_built_and_used() -> None:
    assert "ARG ACCELERATOR=cpu" in LINES
    images = {
        name: {pod["spec"]["containers"][0]["image"] for _, pod in ray_pods(name)}
        for name in ("laptop-kind", "one-gpu-node")
    }
    assert images == {"laptop-kind": {"tandem:0.1.0-cpu"}, "one-gpu-node": {"tandem:0.1.0-cuda"}}


def test_image_chart_and_package_have_one_version() -> None:
    chart = (ROOT / "helm" / "tandem" / "Chart.yaml").read_text()
    assert f'appVersion: "{tandem_client.__version__}"' in chart
    pinned = re.search(r"^ray==(.+)$", PINS, re.M)
    assert pinned is not None
    (ray,) = [item for item in objects() if item["kind"] == "RayService"]
    assert ray["spec"]["rayClusterConfig"]["rayVersion"] == pinned[1]


def ray_pods(name: str = "laptop-kind") -> list[tuple[str, Object]]:
    return [(pod, template) for pod, template in pods(example_objects(name)) if "redis" not in pod]


def test_every_instruction_is_one_of_docker_s_and_every_command_can_be_read() -> None:
    known = {"ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "RUN", "USER", "WORKDIR"}
    assert {line.split()[0] for line in LINES} == known
    for command in instructions("RUN"):
        read = subprocess.run(["sh", "-nc", command], capture_output=True, text=True, check=False)
        assert read.returncode == 0, read.stderr
    for command in instructions("CMD"):
        assert all(isinstance(word, str) for word in json.loads(command))


def test_stages_are_named_and_use_what_they_declare() -> None:
    """A build argument ends with its stage; one that is not declared there is empty."""
    stages: list[str] = []
    outside: set[str] = set()
    declared: set[str] = set()
    for line in LINES:
        used = set(re.findall(r"\$\{(\w+)", line))
        if line.startswith("FROM "):
            assert used <= outside, line
            declared = set()
            stages.append(line.split(" AS ")[1])
            continue
        assert used <= declared, line
        (declared if stages else outside).update(re.findall(r"^ARG (\w+)", line))
        for source in re.findall(r"--from=(\w+)", line):
            assert source in stages[:-1], line
    assert stages[-1] == "run"


def test_every_package_of_the_image_is_pinned() -> None:
    """Those that ours need, those that they need, and so on."""
    pins = dict(line.split("==") for line in PINS.splitlines() if "==" in line)
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(text) for text in project["dependencies"]]
    left = [need for need in needs if need.name != "tandem-client"]  # of the same checkout
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        needed = left.pop()
        name = canonicalize_name(needed.name)
        if (name, frozenset(needed.extras)) in seen:
            continue
        seen.add((name, frozenset(needed.extras)))
        if name.startswith(("nvidia-", "cuda-", "triton")):  # of torch for CUDA, which pins them
            assert str(needed.specifier).startswith("=="), needed
            continue
        assert needed.specifier.contains(pinned[name], prereleases=True), needed
        left += parts_of(name, needed.extras)


def parts_of(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed package needs in the image, with some of its extras."""
    (version,) = [line.split("=")[1] for line in LINES if line.startswith("ARG PYTHON=")]
    image = {"python_full_version": version, "python_version": version.rpartition(".")[0]}
    found = [Requirement(text) for text in requires(name) or []]
    return [
        one
        for one in found
        if one.marker is None
        or any(one.marker.evaluate(image | {"extra": extra}) for extra in ("", *extras))
    ]
