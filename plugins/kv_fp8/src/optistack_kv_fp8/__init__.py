"""FP8 KV cache: the target's dtype, the draft's own, where scales come from, and which attention kernels read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack.rules import Rule
from optistack.settings import KVLayout
from optistack_kv_fp8.options import Options

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import CheckResult

__version__ = "0.1.0"


@hookimpl
def optistack_plugin() -> PluginInfo:
    return PluginInfo(
        name="kv-fp8",
        domain=Domain.KV,
        version=__version__,
        summary="FP8 KV cache: half the bytes a token",
        options=Options,
    )


@hookimpl
def optistack_lay_out_kv(ctx: PlanContext) -> KVLayout:
    from optistack_kv_fp8.settings import decide

    return decide(ctx)


@hookimpl
def optistack_rules() -> Sequence[Rule]:
    from optistack_kv_fp8.rules import RULES

    return RULES


@hookimpl
def optistack_before_start(plan: Plan) -> None:
    from optistack_kv_fp8.start import before_start

    before_start(plan)


@hookimpl
def optistack_probe(plan: Plan, endpoint: Endpoint) -> Sequence[CheckResult]:
    from optistack_kv_fp8.probe import probe

    return [probe(plan, endpoint)]


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_kv_fp8.conformance import CASES

    return CASES


@hookimpl
def optistack_commands() -> Mapping[str, typer.Typer]:
    from optistack_kv_fp8.commands import app

    return {"kv-fp8": app}
