"""The page on pairs of plugins says what plans of these pairs say, and its checks exist."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from scripts.compatibility.checks import CHECKS, PROBES
from scripts.compatibility.page import PAGE, page
from scripts.compatibility.pairs import PLUGINS, outcomes

from optistack.explain import setting_paths
from optistack.receipt_lines import RECEIPT_LINES

PLUGIN_FOLDERS = Path(__file__).parents[2] / "plugins"


def test_the_page_is_made_from_the_plans() -> None:
    assert PAGE.read_text() == page(), "run: make docs"


def test_every_pair_is_planned_on_every_engine_and_place() -> None:
    found = outcomes({"sglang": "0.5.17"})
    places = {outcome.place.name for outcome in found}
    assert places == {"B200", "H200, MLA", "H200, GQA"}
    assert {outcome.pair for outcome in found} == set(combinations(PLUGINS, 2)) == set(CHECKS)
    assert len(found) == 10 * len(places)


def test_a_rule_of_the_pair_is_told_from_those_of_one_plugin() -> None:
    found = {(outcome.place.name, outcome.pair): outcome for outcome in outcomes({"sglang": "0.5.17"})}
    pair = found["H200, GQA", ("kv-fp8", "dflash")]
    together = {reason.rule for reason in pair.reasons if reason.only_together}
    assert pair.verdict == "refused"
    assert together == {"sglang-draft-kv-dtype"}
    assert next(reason.alone for reason in pair.reasons if reason.rule == "kv-fp8-unit-scales") == ("kv-fp8",)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_probes_that_the_page_names_are_those_of_the_code(plugin: str) -> None:
    package = PLUGIN_FOLDERS / plugin.replace("-", "_") / "src" / f"optistack_{plugin.replace('-', '_')}"
    code = "".join(file.read_text() for file in sorted(package.glob("probe*.py")))
    whole = set(re.findall(rf'"({plugin}/[a-z-]+)"', code))
    if f'f"{plugin}/{{check}}"' in code:
        whole |= {f"{plugin}/{word}" for word in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', code) if word != plugin}
    assert set(PROBES[plugin]) == whole


def test_every_check_of_a_pair_is_a_line_of_the_receipt() -> None:
    for pair, check in CHECKS.items():
        probes = {probe for plugin in pair for probe in PROBES[plugin]}
        assert set(check.probes) <= probes | set(setting_paths()) | set(RECEIPT_LINES), pair
        assert probes & set(check.probes), pair
