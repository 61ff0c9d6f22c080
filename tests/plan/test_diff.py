"""The difference of two plans is told as values, each with who decided it."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console

from optistack.cli.views.diff import diff_view
from optistack.plan.diff import Difference, Part, diff_plans
from optistack.plan.plan import Plan

MakePlan = Callable[..., Plan]


def test_a_plan_does_not_differ_from_itself(make_plan: MakePlan) -> None:
    assert diff_plans(make_plan(), make_plan()) == ()


def test_another_kv_dtype_shows_in_settings_flags_and_memory(make_plan: MakePlan) -> None:
    found = {(d.part, d.name): d for d in diff_plans(make_plan(kv_dtype="bfloat16"), make_plan())}
    dtype = found[Part.SETTING, "kv.dtype"]
    assert (dtype.before, dtype.after, dtype.who_after) == ("bfloat16", "fp8_e4m3", "kv-fp8")
    assert found[Part.FLAG, "--kv-cache-dtype"].after == "fp8_e4m3"
    assert found[Part.PLUGIN, "kv-fp8"].before == "dtype=bfloat16"
    assert found[Part.MEMORY, "bytes per KV token"].before == "70,272"
    assert found[Part.MEMORY, "bytes per KV token"].after == "35,136"
    assert (Part.MEMORY, "KV bytes") not in found


def test_what_only_one_plan_has_is_none_in_the_other(make_plan: MakePlan) -> None:
    plain = make_plan(findings=(), plugins=())
    rule = next(d for d in diff_plans(plain, make_plan()) if d.part is Part.RULE)
    assert rule.before is None
    assert rule.after == "override: Speculation caps running requests at 48."
    back = next(d for d in diff_plans(make_plan(), plain) if d.part is Part.RULE)
    assert back.after is None


def test_two_sizes_that_are_one_in_gib_are_told_in_mib() -> None:
    change = Difference(
        part=Part.MEMORY, name="CUDA graphs bytes", before=f"{1088 * 2**20:,}", after=f"{1152 * 2**20:,}"
    )
    console = Console(width=100, file=StringIO())
    console.print(*diff_view([change], "a", "b", wide=True))
    assert isinstance(console.file, StringIO)
    assert "1,088.0 MiB → 1,152.0 MiB" in console.file.getvalue()
