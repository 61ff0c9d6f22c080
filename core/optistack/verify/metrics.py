"""The metrics page of an engine as values that can be looked up and compared between two readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """One reading of a metrics page."""

    samples: tuple[Sample, ...]

    def find(self, name: str, **labels: str) -> list[Sample]:
        """Samples called ``name`` whose labels include ``labels``."""
        return [s for s in self.samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]

    def has(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all samples called ``name`` (ranks, engines); ``None`` when there is none."""
        found = self.find(name, **labels)
        return sum(sample.value for sample in found) if found else None

    def label(self, name: str, label: str) -> str | None:
        """The value of ``label`` on the first sample called ``name`` (for info metrics)."""
        return next((s.labels[label] for s in self.find(name) if label in s.labels), None)


def parse_metrics(text: str) -> Metrics:
    """Parse a page in the Prometheus text format. Raises ValueError when it is not one."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return Metrics(tuple(Sample(s.name, dict(s.labels), s.value) for family in families for s in family.samples))
