"""Which rules explain what an engine says."""

from __future__ import annotations

import pytest

from optistack.errors import PlanRefusedError
from optistack.preflight import Preflight, ResolvedChange, Verdict, explained, names, require_as_planned
from optistack.rules import Evidence, Finding, Severity


def finding(rule: str, severity: Severity, message: str, fix: str = "") -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        message=message,
        fix=fix,
        upstream="",
        evidence=Evidence.OBSERVED,
        domain=None,
        source="sglang",
    )


FINDINGS = (
    finding("page-size", Severity.OVERRIDE, "trtllm_mla takes pages of 32 or 64 tokens.", "Set --page-size 64."),
    finding("nvfp4-kv", Severity.ERROR, "No MLA kernel reads NVFP4.", "Use kv.dtype fp8_e4m3."),
    finding("backend", Severity.ERROR, "trtllm_mla needs SM100."),
)


def test_names_are_spelled_alike() -> None:
    spoken = "Set --page-size or page_size, not kv.dtype; DFLASH is one word, NVFP4 too."
    assert names(spoken) == {"page-size", "kv.dtype"}


def test_a_change_is_explained_by_the_rules_that_name_its_flag_or_setting() -> None:
    answer = Preflight(
        verdict=Verdict.ACCEPTED,
        changes=(
            ResolvedChange(flag="--page-size", asked="16", becomes="64"),
            ResolvedChange(setting="kv.dtype", asked="a", becomes="b"),
            ResolvedChange(flag="--attention-backend", asked="a", becomes="b"),
        ),
    )
    assert [change.explained_by for change in explained(answer, FINDINGS).changes] == [
        ("page-size",),
        ("nvfp4-kv",),
        (),
    ]


def test_a_rejection_is_explained_by_errors_alone() -> None:
    answer = Preflight(verdict=Verdict.REJECTED, message="backend 'trtllm_mla' provides neither")
    assert explained(answer, FINDINGS).explained_by == ("backend",)


def test_the_adapter_knows_better() -> None:
    answer = Preflight(verdict=Verdict.REJECTED, message="trtllm_mla", explained_by=("its-own",))
    assert explained(answer, FINDINGS).explained_by == ("its-own",)


def test_nothing_changed_or_accepted_is_no_reason_to_stop() -> None:
    changed = Preflight(verdict=Verdict.ACCEPTED, changes=(ResolvedChange(flag="--x", asked="1", becomes="2"),))
    require_as_planned(Preflight(verdict=Verdict.ACCEPTED), accept_overrides=False)
    require_as_planned(changed, accept_overrides=True)
    with pytest.raises(PlanRefusedError, match="--x from 1 to 2"):
        require_as_planned(changed, accept_overrides=False)
