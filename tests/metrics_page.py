"""What a test recorded, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cluster.telemetry.backends import PrometheusBackend
from engine import telemetry


class Recorded:
    """The metrics since `recorded` began; names without the router's or Ray's prefix."""

    def __init__(self, backend: PrometheusBackend) -> None:
        self._backend = backend

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series that have these labels; 0 where there is none."""
        return sum(value for found, value in self.series(name) if labels.items() <= found.items())

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Each series of a sample's name."""
        for family in self._backend.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    yield dict(sample.labels), sample.value

    def names(self) -> set[str]:
        """The samples that were recorded at all."""
        families = self._backend.registry.collect()
        return {sample.name for family in families for sample in family.samples}


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Keep all that is recorded within the block."""
    backend = PrometheusBackend()
    telemetry.install(backend)
    try:
        yield Recorded(backend)
    finally:
        telemetry.uninstall(backend)
