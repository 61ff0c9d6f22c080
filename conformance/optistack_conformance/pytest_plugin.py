"""The suite as a pytest plugin: ``pytest --pyargs optistack_conformance --endpoint URL``.

It is loaded into every pytest run of an environment that has optistack, so it imports nothing at load time and does
nothing unless ``--endpoint`` is given.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from optistack_conformance.outcomes import CaseResult, Figure
    from optistack_conformance.selection import Selection

EXIT_INCONCLUSIVE = 4
PACKAGE = Path(__file__).parent

SELECTION: pytest.StashKey[Selection] = pytest.StashKey()
RESULTS: pytest.StashKey[list[CaseResult]] = pytest.StashKey()
FIGURES: pytest.StashKey[list[Figure]] = pytest.StashKey()
SUMMARY: pytest.StashKey[str] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("optistack", "optistack conformance")
    group.addoption("--endpoint", metavar="URL", help="OpenAI-compatible server under test")
    group.addoption("--baseline", metavar="URL", help="the same model without what is under test")
    group.addoption(
        "--conformance",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other setting of the suite: profile=full, lossy=fp8-kv, checkpoint=DIR, tiers=0,1",
    )


def pytest_configure(config: pytest.Config) -> None:
    url = config.getoption("--endpoint")
    if url and SELECTION not in config.stash:
        config.stash[SELECTION] = _selection(url, config)
    config.stash.setdefault(RESULTS, [])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tiers that were not chosen; nothing of other people's tests is touched."""
    from optistack_conformance.selection import TIERS

    ours = [item for item in items if PACKAGE in item.path.parents]
    if not ours:
        return
    if SELECTION not in config.stash:
        raise pytest.UsageError("the conformance suite needs --endpoint URL")
    selection = config.stash[SELECTION]
    names = {TIERS[tier] for tier in selection.chosen_tiers} | ({"plugins"} if selection.plugins else set())
    patterns = [re.compile(fnmatch.translate(pattern.replace("[", "[[]"))) for pattern in selection.cases]
    left_out = [
        item
        for item in ours
        if item.path.parent.name not in names
        or "NOTSET" in item.name
        or (patterns and not any(pattern.match(name) for pattern in patterns for name in _names(item)))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if PACKAGE not in item.path.parents or SELECTION not in item.config.stash:
        return report
    from optistack_conformance.outcomes import InconclusiveError

    doubt = call.excinfo is not None and isinstance(call.excinfo.value, InconclusiveError)
    if doubt and call.excinfo is not None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.reportinfo()[1] or 0, f"inconclusive: {call.excinfo.value}")
    if report.when == "call" or report.outcome != "passed":
        result = _result(item, call, report, doubt)
        item.config.stash[RESULTS].append(result)
        # JUnit takes them from the report of the teardown, which copies them from the item.
        item.user_properties += [(figure.name, _property(figure)) for figure in result.figures]
        item.user_properties += [("known rule", result.known)] if result.known else []
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A gate must not take "cannot tell" for "passed"."""
    from optistack_conformance.outcomes import Outcome

    outcomes = {result.outcome for result in session.config.stash[RESULTS]} if SELECTION in session.config.stash else ()
    if exitstatus == pytest.ExitCode.OK and Outcome.INCONCLUSIVE in outcomes:
        session.exitstatus = EXIT_INCONCLUSIVE


def _selection(url: str, config: pytest.Config) -> Selection:
    from pydantic import ValidationError

    from optistack_conformance.selection import Selection

    values: dict[str, Any] = {"endpoint": url, "baseline": config.getoption("--baseline")}
    for word in config.getoption("--conformance"):
        key, _, value = word.partition("=")
        values[key] = value.split(",") if key in ("tiers", "plugins", "cases") else value
    try:
        return Selection.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise pytest.UsageError(f"--conformance {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _result(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, doubt: bool) -> CaseResult:
    from optistack_conformance.known import known_rule
    from optistack_conformance.outcomes import CaseResult, Outcome

    name, tier, summary = _identity(item)
    figures: list[Figure] = item.stash.get(FIGURES, [])
    engine = getattr(item, "funcargs", {}).get("engine")
    outcome = {"passed": Outcome.PASS, "failed": Outcome.FAIL, "skipped": Outcome.SKIPPED}[report.outcome]
    return CaseResult(
        id=name,
        tier=tier,
        summary=" ".join(summary.split()),
        outcome=Outcome.INCONCLUSIVE if doubt else outcome,
        why=_why(call) or item.stash.get(SUMMARY, ""),
        known=known_rule(name, engine) if report.outcome == "failed" and engine is not None else "",
        figures=tuple(figures),
        duration_s=call.duration,
    )


def _identity(item: pytest.Item) -> tuple[str, int, str]:
    """Id, tier and summary of the case that ``item`` runs."""
    from optistack.cases import ConformanceCase
    from optistack_conformance.selection import TIERS

    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    if isinstance(case, ConformanceCase):
        return f"plugins/{case.id}", case.tier, case.summary
    group = item.path.parent.name
    tiers = {name: tier for tier, name in TIERS.items()}
    summary = (getattr(getattr(item, "function", None), "__doc__", "") or "").strip().split("\n\n")[0]
    return f"{group}/{item.name.removeprefix('test_').replace('_', '-')}", tiers.get(group, 0), summary


def _names(item: pytest.Item) -> tuple[str, str]:
    """What a pattern may match: the id, and for a plugin's case the one that the plugin gave it."""
    name = _identity(item)[0]
    return name, name.removeprefix("plugins/")


def _why(call: pytest.CallInfo[None]) -> str:
    if call.excinfo is None:
        return ""
    error = call.excinfo.value
    text = getattr(error, "msg", None) or str(error) or type(error).__name__
    return str(text).removeprefix("AssertionError: ").split("\nassert ")[0].strip()[:600]


def _property(figure: Figure) -> str:
    bound = f" {figure.relation} {figure.threshold:g}" if figure.threshold is not None else ""
    floor = f", noise floor {figure.floor:g}" if figure.floor is not None else ""
    return f"{figure.value:g} {figure.unit}".strip() + bound + floor + (f", n={figure.n}" if figure.n else "")
