"""NVFP4 weights: recognised in the checkpoint, run by the kernels that suit the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optistack import hookimpl
from optistack.plugin import Domain, PluginInfo
from optistack.rules import Rule
from optistack.settings import WeightQuantization
from optistack_quant_nvfp4.options import Options

if TYPE_CHECKING:
    import typer

    from optistack.cases import ConformanceCase
    from optistack.context import PlanContext

__version__ = "0.1.0"


@hookimpl
def optistack_plugin() -> PluginInfo:
    return PluginInfo(
        name="quant-nvfp4",
        domain=Domain.QUANTIZATION,
        version=__version__,
        summary="NVFP4 weights: what the checkpoint has, and the kernels that run it",
        options=Options,
    )


@hookimpl
def optistack_quantize_weights(ctx: PlanContext) -> WeightQuantization:
    from optistack_quant_nvfp4.settings import decide

    return decide(ctx)


@hookimpl
def optistack_rules() -> Sequence[Rule]:
    from optistack_quant_nvfp4.rules import RULES

    return RULES


@hookimpl
def optistack_conformance() -> Sequence[ConformanceCase]:
    from optistack_quant_nvfp4.conformance import CASES

    return CASES


@hookimpl
def optistack_commands() -> Mapping[str, typer.Typer]:
    from optistack_quant_nvfp4.commands import app

    return {"quant-nvfp4": app}
