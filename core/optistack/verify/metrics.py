"""Reading Prometheus text: the metrics page of an engine as values that can be looked up and subtracted."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


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
    """Parse the Prometheus text format; lines that are no samples are passed over."""
    samples = []
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {name: _unescape(text) for name, text in _LABEL.findall(match["labels"] or "")}
        samples.append(Sample(match["name"], labels, value))
    return Metrics(tuple(samples))


def _unescape(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPES[match.group()], text)
