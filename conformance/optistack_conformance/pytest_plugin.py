"""The suite as a pytest plugin: ``pytest --pyargs optistack_conformance --endpoint URL``.

It is loaded into every pytest run of an environment that has optistack, so it imports nothing at load time and does
nothing unless ``--endpoint`` is given.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Generator, Iterator
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
UNASKED: pytest.StashKey[bool] = pytest.StashKey()
"""Set where nobody asked yet whether the servers are there."""
GONE: pytest.StashKey[str] = pytest.StashKey()
"""Set where a server went away during the run: which one, in a sentence."""


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
        with _usage():
            config.stash[SELECTION] = _selection(url, config)
            config.stash[UNASKED] = True
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
    if config.stash.get(UNASKED, False) and len(left_out) < len(ours):
        from optistack_conformance.runner import subjects

        with _usage():
            subjects(selection)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if PACKAGE not in item.path.parents or SELECTION not in item.config.stash:
        return report
    from optistack_conformance.answers import NotScoredError
    from optistack_conformance.outcomes import InconclusiveError

    said = _sentence(item, call)
    if said and report.outcome == "failed":
        report.longrepr = said
    doubt = call.excinfo is not None and isinstance(call.excinfo.value, (InconclusiveError, NotScoredError))
    if doubt and call.excinfo is not None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.reportinfo()[1] or 0, f"inconclusive: {call.excinfo.value}")
    if report.when == "call" or report.outcome != "passed":
        result = _result(item, call, report, doubt)
        item.config.stash[RESULTS].append(result)
        # JUnit takes them from the report of the teardown, which copies them from the item.
        item.user_properties += [(figure.name, _property(figure)) for figure in result.figures]
        item.user_properties += [("known rule", result.known)] if result.known else []
    if report.outcome == "failed":
        _stop_if_gone(item)
    return report


def _stop_if_gone(item: pytest.Item) -> None:
    """What follows would fail because a server is gone, and say nothing about the cases."""
    from optistack_conformance.alive import gone

    if why := gone(item.config.stash[SELECTION]):
        item.config.stash[GONE] = why
        item.session.shouldstop = f"conformance: {why}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A gate must not take "cannot tell" for "passed"."""
    from optistack_conformance.outcomes import Outcome

    outcomes = {result.outcome for result in session.config.stash[RESULTS]} if SELECTION in session.config.stash else ()
    if exitstatus == pytest.ExitCode.OK and Outcome.INCONCLUSIVE in outcomes:
        session.exitstatus = EXIT_INCONCLUSIVE


def _selection(url: str, config: pytest.Config) -> Selection:
    from optistack.errors import InputError
    from optistack_conformance.runner import check_cases, check_given, check_installed
    from optistack_conformance.selection import read_selection

    given: set[str] = set()
    values: dict[str, Any] = {"endpoint": url, "baseline": config.getoption("--baseline")}
    for word in config.getoption("--conformance"):
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--conformance {word} is no KEY=VALUE.", fix="Like --conformance profile=full.")
        given.add(key)
        values[key] = value.split(",") if key in ("tiers", "plugins", "cases") else value
    check_installed()
    selection = read_selection(values, option=lambda key: f"--conformance {key}" if key in given else f"--{key}")
    check_given(selection)
    check_cases(selection)
    return selection


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """What is wrong with the options ends pytest with a sentence, not with a traceback for each case."""
    from optistack.errors import OptistackError

    try:
        yield
    except OptistackError as error:
        raise pytest.UsageError(f"conformance: {error}") from error


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
        why=_why(item, call) or item.stash.get(SUMMARY, ""),
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


def _why(item: pytest.Item, call: pytest.CallInfo[None]) -> str:
    if call.excinfo is None:
        return ""
    error = call.excinfo.value
    text = _sentence(item, call) or getattr(error, "msg", None) or str(error) or type(error).__name__
    return str(text).removeprefix("AssertionError: ").split("\nassert ")[0].strip()[:600]


def _sentence(item: pytest.Item, call: pytest.CallInfo[None]) -> str:
    """For an error that says by itself what is wrong, and for an answer that could not be read; else empty."""
    from optistack.errors import OptistackError
    from optistack_conformance.answers import MISSHAPEN, misshapen

    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, OptistackError):
        return str(error)
    if call.excinfo is not None and isinstance(error, MISSHAPEN):
        place = call.excinfo.traceback[-1]
        where = item.config.stash[SELECTION].endpoint
        return f"{misshapen(error, where)} (read in {Path(str(place.path)).name}:{place.lineno + 1})"
    return ""


def _property(figure: Figure) -> str:
    bound = f" {figure.relation} {figure.threshold:g}" if figure.threshold is not None else ""
    floor = f", noise floor {figure.floor:g}" if figure.floor is not None else ""
    return f"{figure.value:g} {figure.unit}".strip() + bound + floor + (f", n={figure.n}" if figure.n else "")
