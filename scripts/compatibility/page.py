"""The page as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scripts.compatibility.checks import CHECKS, PROBES
from scripts.compatibility.pairs import BACKENDS, PAIRS, PLUGINS, Outcome, Reason, outcomes, version_at
from scripts.compatibility.shapes import PLACES

from optistack.backend import get_backend
from optistack.engines.snapshots import snapshot_versions
from optistack.receipt_lines import RECEIPT_LINES
from optistack.rules import Severity

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}

OPENING = """# Compatibility of the plugins

<!-- Made by `make docs` from plans of every pair; a test fails where the two differ. -->

Each of the ten pairs of the five plugins, planned for real with default options and checked against the flags of the
engine's version, with no engine started. *Supported*: no rule speaks against it. *Degraded*: it works, and a plugin
gives less than one would think, or the engine changes or ignores something. *Refused*: it is not started.
[rules.md](rules.md) has every rule; `optistack plan` says the same of your own stack.

A plan is not a proof. What a running engine says is in the receipt of `optistack apply` and `optistack verify`, and
each pair below names the lines that would show its failure.
"""


def page() -> str:
    """The page as it should be."""
    found = outcomes()
    parts = [OPENING, *_places(), *_matrix(found), *_receipt(found)]
    for pair in PAIRS:
        parts += _pair(pair, [outcome for outcome in found if outcome.pair == pair])
    parts += _versions(found)
    return "\n".join(parts) + "\n"


def _places() -> Iterator[str]:
    yield "| place | model | SGLang | vLLM |\n|---|---|---|---|"
    for place in PLACES:
        versions = " | ".join(version_at(backend, place) for backend in BACKENDS)
        yield f"| {place.name} | {place.model} | {versions} |"
    yield "\nPairs with quant-nvfp4 are planned for the same shape with NVFP4 weights. Kimi has them in any case.\n"


def _matrix(found: Sequence[Outcome]) -> Iterator[str]:
    yield "## At a glance\n"
    yield "In bold where a rule fires that fires for neither plugin alone.\n"
    heads = [f"{ENGINES[backend]}, {place.name}" for backend in BACKENDS for place in PLACES]
    yield f"| pair | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for pair in PAIRS:
        verdicts = [_marked(outcome) for outcome in found if outcome.pair == pair]
        yield f"| [{' and '.join(pair)}](#{_anchor(pair)}) | {' | '.join(verdicts)} |"


def _marked(outcome: Outcome) -> str:
    own = any(reason.only_together and reason.severity is not Severity.NOTE for reason in outcome.reasons)
    return f"**{outcome.verdict}**" if own else outcome.verdict


def _receipt(found: Sequence[Outcome]) -> Iterator[str]:
    yield "\n## What the receipt checks\n"
    yield "Settings are compared with what the engine reports; probes send requests and watch what moves.\n"
    yield "| plugin | settings | probes |\n|---|---|---|"
    for plugin in PLUGINS:
        settings = dict.fromkeys(path for outcome in found for owner, path in outcome.settings if owner == plugin)
        yield f"| {plugin} | {_code(settings)} | {_code(PROBES[plugin]) or 'none'} |"
    own = _code(line for line in RECEIPT_LINES if line.startswith("budget."))
    yield f"\nWhatever the plugins, the plan's own figures are compared with the engine's: {own}, the last on GPUs."
    yield "\nNo engine knows about `routing.*`; these lines stay unproven until a router is asked."


def _pair(pair: tuple[str, str], found: Sequence[Outcome]) -> Iterator[str]:
    check = CHECKS[pair]
    yield f"\n## {' and '.join(pair)}\n"
    if check.reported:
        yield f"Reported: {check.reported}\n"
    yield f"Proof on a running engine: {check.shows} Receipt lines: {_code(check.probes)}.\n"
    yield "| engine | place | verdict | because of |\n|---|---|---|---|"
    for outcome in found:
        engine = f"{ENGINES[outcome.backend]} {outcome.version}"
        yield f"| {engine} | {outcome.place.name} | {outcome.verdict} | {_reasons(outcome.reasons)} |"


def _versions(found: Sequence[Outcome]) -> Iterator[str]:
    yield "\n## Other versions\n"
    yield "The same pairs on the GPUs, for the other versions whose flags are known: where a verdict is another one.\n"
    yield "| engine | pair | place | verdict | because of |\n|---|---|---|---|---|"
    usual = {(outcome.backend, outcome.place, outcome.pair): outcome.verdict for outcome in found}
    for name in BACKENDS:
        backend = get_backend(name)
        others = [v for v in snapshot_versions(backend.snapshots, name) if v != backend.default_version]
        for version in reversed(others):
            for outcome in outcomes({name: version}):
                if outcome.verdict != usual[name, outcome.place, outcome.pair]:
                    cells = [" and ".join(outcome.pair), outcome.place.name, outcome.verdict, _reasons(outcome.reasons)]
                    yield f"| {ENGINES[name]} {version} | {' | '.join(cells)} |"


def _reasons(reasons: Iterable[Reason]) -> str:
    return "; ".join(f"`{reason.rule}` ({reason.severity}, {_whose(reason)})" for reason in reasons)


def _whose(reason: Reason) -> str:
    return "only together" if reason.only_together else f"of {' and '.join(reason.alone)}"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _anchor(pair: tuple[str, str]) -> str:
    return f"{pair[0]}-and-{pair[1]}"
