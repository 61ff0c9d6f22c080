"""Write ``docs/rules.md``: every rule of the repository's own adapters and plugins, with how it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from optistack.host import Host
from optistack.plan.rule_book import all_rules
from optistack.rules import Evidence, Rule, Severity

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "rules.md"
PLUGINS = tuple(sorted(folder.name.replace("_", "-") for folder in (ROOT / "plugins").iterdir() if folder.is_dir()))
ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}

OPENING = """# Rules

<!-- Made by `make docs` from the rules themselves; a test fails where the two differ. -->

What optistack knows about combinations of settings before anything is started. `optistack plan` evaluates every rule
whose engine, version and GPU fit, and says which fired; `optistack explain RULE` prints one with its fix.

| severity | what it means |
|---|---|
| error | refuses the plan |
| override | the engine would silently use another value |
| silent | the engine accepts it and ignores it |
| degraded | works, but worse than one would think |
| note | worth knowing |

How a rule is known:

- **observed**: seen here, by running the engine or its own argument resolution.
- **read**: in the engine's code or documentation; the source column says where.
- **reported**: by users upstream, and not reproduced here.

An ellipsis stands for what only a plan can fill in.
"""


def page() -> str:
    """The page as it should be."""
    ours = {"optistack", *ENGINES, *PLUGINS}  # a third party's may be installed beside them
    rules = [(source, rule) for source, rule in all_rules(Host.from_environment()) if source in ours]
    parts = [OPENING, *_counts(rules)]
    for source in dict.fromkeys(source for source, _ in rules):
        parts.append(f"\n## {_heading(source)}\n")
        parts += _table([rule for said_by, rule in rules if said_by == source], with_engine=source not in ENGINES)
    return "\n".join(parts) + "\n"


def _counts(rules: Sequence[tuple[str, Rule]]) -> Iterator[str]:
    """How many rules there are for each engine: the adapter's own, and others' that can fire there."""
    words = ", ".join(f"{_about(rules, engine)} that can fire on {name}" for engine, name in ENGINES.items())
    yield f"There are {len(rules)} rules: {words}.\n"
    yield f"| rules of | in all | {' | '.join(Severity)} | {' | '.join(Evidence)} |"
    yield "|---" + "|--:" * (1 + len(Severity) + len(Evidence)) + "|"
    for source in dict.fromkeys(source for source, _ in rules):
        own = [rule for said_by, rule in rules if said_by == source]
        severities, evidence = Counter(rule.severity for rule in own), Counter(rule.evidence for rule in own)
        numbers = [len(own), *(severities[word] for word in Severity), *(evidence[word] for word in Evidence)]
        yield f"| {_heading(source)} | {' | '.join(map(str, numbers))} |"


def _about(rules: Iterable[tuple[str, Rule]], engine: str) -> int:
    return sum(
        source == engine or (source not in ENGINES and (not rule.backends or engine in rule.backends))
        for source, rule in rules
    )


def _heading(source: str) -> str:
    return {"optistack": "Any stack", **ENGINES}.get(source, f"Plugin {source}")


def _table(rules: Sequence[Rule], *, with_engine: bool) -> Iterator[str]:
    first = ["rule", "severity", *(["engine"] if with_engine else []), "versions", "GPU"]
    yield f"| {' | '.join([*first, 'what it says', 'known', 'source'])} |"
    yield "|---" * (len(first) + 3) + "|"
    for rule in rules:
        engine = [", ".join(ENGINES.get(name, name) for name in rule.backends) or "any"] if with_engine else []
        versions = f"`{rule.versions}`" if rule.versions else "all"
        gpus = ", ".join(f"SM{sm}" for sm in rule.sm) or "any"
        cells = [f"`{rule.id}`", rule.severity, *engine, versions, gpus, _text(rule.message), rule.evidence]
        yield f"| {' | '.join([*cells, _text(rule.upstream)])} |"


def _text(text: str) -> str:
    """For a cell: what only a plan can fill in is an ellipsis, and nothing of it is taken for markup."""
    plain = text.replace("{detail}", "…")
    for mark in "|<*":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
