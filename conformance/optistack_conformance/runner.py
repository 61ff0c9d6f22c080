"""Run a selection of the suite and return what it found."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optistack
from optistack.apply.termination import termination_raises
from optistack.errors import CheckFailedError, InputError
from optistack_conformance.evals import VERSION
from optistack_conformance.outcomes import CaseResult
from optistack_conformance.report import Report, State, Subject
from optistack_conformance.selection import Selection

if TYPE_CHECKING:
    from optistack.cases import ConformanceCase

TIERS_DIR = Path(__file__).parent / "tiers"
NEEDED = ("pytest", "numpy", "scipy", "jsonschema")


def run_suite(
    selection: Selection, *, junit: Path | None = None, progress: Callable[[str], None] = lambda case: None
) -> Report:
    """Run the cases that ``selection`` chooses, in this process, and judge.

    ``progress`` is told each case before it runs. ``junit`` is where JUnit's XML goes. A run that is interrupted, or
    whose server goes away, comes back with its state and what it found until then. Raises InputError when a server does
    not answer at the beginning, a recorded baseline does not fit, or the extra ``conformance`` is not installed.
    """
    check_installed()
    started = time.monotonic()
    check_given(selection)
    candidate, baseline = subjects(selection)
    run = _run_pytest(selection, junit, progress)
    from optistack_conformance.reference import fingerprint
    from optistack_conformance.template import ChatTemplate

    return Report(
        optistack_version=optistack.__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        candidate=candidate,
        baseline=baseline,
        settings=selection.model_dump(mode="json", exclude={"plan_hash", "api_key_variable"}),
        plan_hash=selection.plan_hash,
        checkpoint_fingerprint=fingerprint(selection),
        chat_template_hash=ChatTemplate(Path(selection.checkpoint)).hash if selection.checkpoint else None,
        evals_version=VERSION,
        results=tuple(run.results),
        state=run.state,
        ended=run.ended,
        duration_s=time.monotonic() - started,
    )


def check_installed() -> None:
    """Raise InputError when the libraries of the extra are missing."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"The conformance suite needs {', '.join(missing)}.",
            fix="In a clone of optistack, run: pip install '.[conformance]'",
        )


def check_given(selection: Selection) -> None:
    """Raise InputError for a plugin that is not installed or a checkpoint that cannot be read."""
    plugin_cases(selection)
    if selection.checkpoint is not None:
        from optistack_conformance.reference import fingerprint
        from optistack_conformance.template import ChatTemplate

        ChatTemplate(Path(selection.checkpoint)).check()
        fingerprint(selection)


def check_cases(selection: Selection) -> None:
    """Raise InputError for a plugin that was asked for by name and has cases, of which the chosen tiers run none."""
    for name, cases in plugin_cases(selection).items():
        tiers = {case.tier for case in cases}
        if tiers and tiers.isdisjoint(selection.chosen_tiers):
            chosen = " and ".join(map(str, selection.chosen_tiers))
            lossy = " or --lossy" if 2 in tiers else ""
            raise InputError(
                f"The cases of {name} are of tier {min(tiers)}, and what is run is tier {chosen}.",
                fix=f"Choose theirs, by --tier {min(tiers)}{lossy}, or leave {name} out.",
            )


def plugin_cases(selection: Selection) -> dict[str, Sequence[ConformanceCase]]:
    """What each plugin of ``selection`` brings. Raises InputError for one that is not installed."""
    if not selection.plugins:
        return {}
    from optistack.cases import ConformanceCase
    from optistack.host import Host

    host = Host.from_environment()
    return {
        name: host.call_many(host.get(name), "optistack_conformance", ConformanceCase) for name in selection.plugins
    }


def subjects(selection: Selection) -> tuple[Subject, Subject | None]:
    """Who is compared with whom; asking now tells a wrong URL before anything runs.

    Raises InputError when a server does not answer, or a recorded baseline or the checkpoint does not fit.
    """
    from optistack_conformance.client import Client
    from optistack_conformance.engine import read_engine
    from optistack_conformance.reference import key_of, load_reference, subject

    def ask(url: str, kv_dtype: str | None) -> Subject:
        with Client(url, api_key=os.environ.get(selection.api_key_variable), timeout_s=selection.timeout_s) as client:
            engine = read_engine(client)
            if url == selection.endpoint and selection.baseline_file is not None:
                expected, other = key_of(selection, engine), selection.lossy == "nvfp4"
                loaded.append(load_reference(Path(selection.baseline_file), expected, other_checkpoint=other).subject)
            return subject(client, engine, kv_dtype or engine.kv_dtype)

    loaded: list[Subject] = []
    candidate = ask(selection.endpoint, selection.kv_dtype)
    if selection.baseline is not None:
        return candidate, ask(selection.baseline, None)
    return candidate, loaded[0] if loaded else None


class _Collector:
    """A pytest plugin: hands the selection in, and the results out."""

    def __init__(self, selection: Selection, progress: Callable[[str], None]) -> None:
        from optistack_conformance import pytest_plugin

        self.results: list[CaseResult] = []
        self.interrupted = False
        self.gone = ""
        self._chosen = self._begun = 0
        self._case = ""
        self._plugin = pytest_plugin
        self._selection = selection
        self._progress = progress

    def pytest_configure(self, config: Any) -> None:
        config.stash[self._plugin.SELECTION] = self._selection
        config.stash[self._plugin.RESULTS] = self.results

    def pytest_collection_finish(self, session: Any) -> None:
        self._chosen = len(session.items)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        import pytest

        # What pytest raises where a plugin stops the session is a KeyboardInterrupt, too.
        stopped = isinstance(excinfo.value, pytest.Session.Interrupted) or not excinfo.errisinstance(KeyboardInterrupt)
        self.interrupted = self.interrupted or not stopped

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun += 1
        self._case = nodeid.partition("::")[2].removeprefix("test_").replace("_", " ")
        self._progress(self._case)

    def pytest_sessionfinish(self, session: Any) -> None:
        self.gone = session.config.stash.get(self._plugin.GONE, "")

    @property
    def state(self) -> State:
        if self.interrupted:
            return State.INTERRUPTED
        return State.INCOMPLETE if self.gone else State.COMPLETE

    @property
    def ended(self) -> str:
        """Why and where the run was broken off; empty for one that is complete."""
        if self.state is State.COMPLETE:
            return ""
        where = (
            f"Case {self._begun} of {self._chosen}, {self._case}, was the last."
            if self._begun
            else "No case had begun."
        )
        return f"{self.gone or 'It was told to stop.'} {where}"


def _run_pytest(selection: Selection, junit: Path | None, progress: Callable[[str], None]) -> _Collector:
    import pytest

    from optistack_conformance.junit import SUITE, finish, room_for

    collector = _Collector(selection, progress)
    arguments = [str(TIERS_DIR), "-c", os.devnull, "--rootdir", str(TIERS_DIR), "--import-mode=importlib", "-q"]
    arguments += ["-p", "no:cacheprovider", "--no-header", "--tb=short"]
    arguments += ["-p", "optistack_conformance.pytest_plugin"]
    output = io.StringIO()
    with room_for(junit) as written:
        if written is not None:
            arguments += [f"--junitxml={written}", "-o", f"junit_suite_name={SUITE}"]
        with termination_raises(), _without_others_plugins(), contextlib.redirect_stdout(output):
            try:
                code = pytest.main(arguments, plugins=[collector])
            except KeyboardInterrupt:  # where pytest takes none
                collector.interrupted, code = True, pytest.ExitCode.INTERRUPTED
        if collector.state is State.COMPLETE:
            _check(code, bool(collector.results), selection, output.getvalue())
        if junit is not None and written is not None:
            finish(written, junit, collector.state, collector.ended)
    return collector


def _check(code: int, any_results: bool, selection: Selection, output: str) -> None:
    """Raises InputError when no case was chosen, CheckFailedError when pytest could not do its work."""
    import pytest

    if code == pytest.ExitCode.NO_TESTS_COLLECTED and selection.cases:
        patterns = ", ".join(selection.cases)
        raise InputError(f"No case matches {patterns}.", fix="Take ids from a report, or patterns: 'contract/stop-*'.")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, 4) or not any_results:
        raise CheckFailedError(f"The suite itself failed: {output[-2000:]}")


@contextlib.contextmanager
def _without_others_plugins() -> Iterator[None]:
    ours = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
