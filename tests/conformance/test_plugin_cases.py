"""Cases that a plugin brings are run on the composition, and judged with the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack.errors import InputError
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import Outcome
from optistack_conformance.runner import run_suite
from optistack_conformance.selection import Selection

MODULE = """
from optistack import hookimpl
from optistack.cases import ConformanceCase
from optistack.plugin import Domain, PluginInfo
from optistack.verify.receipt import CheckResult, Status


@hookimpl
def optistack_plugin():
    return PluginInfo(name="echo", domain=Domain.SPECULATION, version="1.0", summary="A plugin with cases.")


def case(name, tier, status):
    def run(endpoint):
        return CheckResult(
            id=f"echo/{name}", promised_by="echo", asked="it serves", engine_says=endpoint.model(), proof="/v1/models",
            status=status,
        )

    return ConformanceCase(id=f"echo/{name}", tier=tier, summary="It serves a model.", run=run)


@hookimpl
def optistack_conformance():
    return [case("holds", 0, Status.PASS), case("breaks", 1, Status.FAIL), case("cannot-tell", 1, Status.UNPROVEN),
            case("of-tier-2", 2, Status.FAIL)]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third party's plugin, installed as pip would."""
    (tmp_path / "optistack_echo.py").write_text(MODULE)
    info = tmp_path / "optistack_echo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: optistack-echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optistack.plugins]\necho = optistack_echo\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_cases_of_the_chosen_tiers_are_run_and_judged() -> None:
    with FaultyServer() as server:
        report = run_suite(Selection(endpoint=server.url, plugins=("echo",)))
    outcomes = {result.id: result.outcome for result in report.results if result.id.startswith("plugins/")}
    assert outcomes == {
        "plugins/echo/holds": Outcome.PASS,
        "plugins/echo/breaks": Outcome.FAIL,
        "plugins/echo/cannot-tell": Outcome.INCONCLUSIVE,
    }
    assert report.verdict_of(0) is Outcome.PASS
    assert report.verdict_of(1) is Outcome.FAIL


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("pattern", ["echo/h*", "plugins/echo/h*"])
def test_a_case_is_found_by_the_name_that_the_plugin_gave_it(pattern: str) -> None:
    with FaultyServer() as server:
        report = run_suite(Selection(endpoint=server.url, plugins=("echo",), cases=(pattern,)))
    assert [result.id for result in report.results] == ["plugins/echo/holds"]


@pytest.mark.usefixtures("installed")
def test_a_case_that_passes_is_listed_with_what_the_engine_said(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer() as server:
        assert run(["conformance", "--endpoint", server.url, "-p", "echo", "--case", "echo/holds"]) == 0
    assert re.search(r"pass +plugins/echo/holds +asked it serves; the engine says toy", capsys.readouterr().out)


def test_a_plugin_whose_cases_no_chosen_tier_runs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer() as server:
        assert run(["conformance", "--endpoint", server.url, "-p", "kv-fp8", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["error"] == "The cases of kv-fp8 are of tier 2, and what is run is tier 0 and 1."
    assert said["fix"] == "Choose theirs, by --tier 2 or --lossy, or leave kv-fp8 out."


def test_a_plugin_that_is_not_installed_is_said() -> None:
    with FaultyServer() as server, pytest.raises(InputError, match="nobody"):
        run_suite(Selection(endpoint=server.url, plugins=("nobody",), tiers=(0,)))
