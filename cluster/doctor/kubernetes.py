"""What the chart needs of Kubernetes: its kinds, and the permission to create them."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.doctor.findings import Finding, Severity
from cluster.doctor.gpus import Run, command_output

# Kinds that every release has; `ray.io` is there where KubeRay's operator is installed.
_KINDS = (
    *("rayservices.ray.io", "services", "configmaps", "serviceaccounts", "secrets"),
    *("statefulsets.apps", "poddisruptionbudgets.policy", "networkpolicies.networking.k8s.io"),
)


def look_at_kubernetes(run: Run = command_output) -> Iterator[Finding]:
    """By `kubectl`, with the user's present context; nothing where there is none."""
    context = (run(["kubectl", "config", "current-context"]) or "").strip()
    if not context:
        yield Finding("Kubernetes", Severity.NOTE, "no kubectl with a context: not looked at")
        return
    if run(["kubectl", "version", "--request-timeout=5s"]) is None:
        change = "look at the context's server and at your credentials"
        yield Finding("Kubernetes", Severity.ERROR, f"{context} does not answer", change)
        return
    if run(["kubectl", "get", "crd", "rayservices.ray.io", "--request-timeout=5s"]) is None:
        change = "install KubeRay's operator, or ask its administrator"
        yield Finding("Kubernetes", Severity.WARNING, f"{context} shows no RayService", change)
    refused = [kind for kind in _KINDS if not _may_create(run, kind)]
    if refused:
        change = "have these allowed in the namespace"
        found = f"{context}: you may not create {', '.join(refused)}"
        yield Finding("Kubernetes", Severity.ERROR, found, change)
    else:
        yield Finding("Kubernetes", Severity.OK, f"{context}: you may create what the chart has")


def _may_create(run: Run, kind: str) -> bool:
    answer = run(["kubectl", "auth", "can-i", "create", kind, "--request-timeout=5s"])
    return (answer or "").strip() == "yes"
