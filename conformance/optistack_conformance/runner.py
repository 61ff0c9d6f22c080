"""Run a selection of the suite and return what it found."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optistack
from optistack.errors import CheckFailedError, InputError
from optistack_conformance.evals import VERSION
from optistack_conformance.outcomes import CaseResult
from optistack_conformance.report import Report, Subject
from optistack_conformance.selection import Selection

TIERS_DIR = Path(__file__).parent / "tiers"
NEEDED = ("pytest", "numpy", "scipy", "jsonschema")


def run_suite(
    selection: Selection, *, junit: Path | None = None, progress: Callable[[str], None] = lambda case: None
) -> Report:
    """Run the cases that ``selection`` chooses, in this process, and judge.

    ``progress`` is told each case before it runs. ``junit`` is where pytest writes its XML. Raises InputError when a
    server does not answer, a recorded baseline does not fit, or the extra ``conformance`` is not installed.
    """
    check_installed()
    started = time.monotonic()
    check_given(selection)
    candidate, baseline = subjects(selection)
    results = _run_pytest(selection, junit, progress)
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
        results=tuple(results),
        duration_s=time.monotonic() - started,
    )


def check_installed() -> None:
    """Raise InputError when the libraries of the extra are missing."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"The conformance suite needs {', '.join(missing)}.",
            fix="Run: pip install 'optistack[conformance]'",
        )


def check_given(selection: Selection) -> None:
    """Raise InputError for a plugin that is not installed or a checkpoint that cannot be read."""
    if selection.plugins:
        from optistack.host import Host

        host = Host.from_environment()
        for name in selection.plugins:
            host.get(name)
    if selection.checkpoint is not None:
        from optistack_conformance.reference import fingerprint
        from optistack_conformance.template import ChatTemplate

        ChatTemplate(Path(selection.checkpoint))
        fingerprint(selection)


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
        self._plugin = pytest_plugin
        self._selection = selection
        self._progress = progress

    def pytest_configure(self, config: Any) -> None:
        config.stash[self._plugin.SELECTION] = self._selection
        config.stash[self._plugin.RESULTS] = self.results

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self.interrupted = self.interrupted or excinfo.errisinstance(KeyboardInterrupt)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._progress(nodeid.partition("::")[2].removeprefix("test_").replace("_", " "))


def _run_pytest(selection: Selection, junit: Path | None, progress: Callable[[str], None]) -> list[CaseResult]:
    import pytest

    collector = _Collector(selection, progress)
    arguments = [str(TIERS_DIR), "-c", os.devnull, "--rootdir", str(TIERS_DIR), "--import-mode=importlib", "-q"]
    arguments += ["-p", "no:cacheprovider", "--no-header", "--tb=short"]
    arguments += ["-p", "optistack_conformance.pytest_plugin"]
    if junit is not None:
        arguments += [f"--junitxml={junit}", "-o", "junit_suite_name=optistack-conformance"]
    output = io.StringIO()
    with _without_others_plugins(), contextlib.redirect_stdout(output):
        code = pytest.main(arguments, plugins=[collector])
    if collector.interrupted:
        raise KeyboardInterrupt
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and selection.cases:
        patterns = ", ".join(selection.cases)
        raise InputError(f"No case matches {patterns}.", fix="Take ids from a report, or patterns: 'contract/stop-*'.")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, 4) or not collector.results:
        raise CheckFailedError(f"The suite itself failed: {output.getvalue()[-2000:]}")
    return collector.results


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
