"""Failures that a rule about the engine explains: the report names the rule, and the verdict stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from optistack.backend import backend_names, get_backend
from optistack.versions import within
from optistack_conformance.engine import EngineInfo


@dataclass(frozen=True)
class Explanation:
    """What ``rule`` makes fail: cases by their ids (with ``*``), on engines of which ``holds`` is true.

    Backend and versions are the rule's own. ``holds`` looks at what the server tells of itself.
    """

    rule: str
    cases: tuple[str, ...]
    holds: Callable[[EngineInfo], bool]


def _drafts_on_cpu(engine: EngineInfo) -> bool:
    return engine.speculative and engine.device in ("cpu", None)


EXPLANATIONS = (
    Explanation(
        "vllm-cpu-speculative-sampling",
        (
            "lossless/samples-follow-the-models-distribution",
            "contract/seed-repeats-a-sample*",
            "contract/n-gives-n-choices*",
        ),
        _drafts_on_cpu,
    ),
)


def known_rule(case: str, engine: EngineInfo) -> str:
    """The rule that explains a failure of ``case`` on ``engine``: its id and sentence; empty when none is known.

    Where a vLLM server does not say what it runs on, the rule is named with that condition.
    """
    for one in EXPLANATIONS:
        if any(fnmatchcase(case, pattern) for pattern in one.cases) and one.holds(engine):
            for name in backend_names():
                rule = next((rule for rule in get_backend(name).rules() if rule.id == one.rule), None)
                if rule and engine.name in rule.backends and within(engine.version, rule.versions):
                    condition = "" if engine.device else " (if this server runs on a CPU, which it does not say)"
                    return f"{rule.id}{condition}: {rule.message}"
    return ""
