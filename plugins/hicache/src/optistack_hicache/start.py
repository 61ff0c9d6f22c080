"""What this machine must have for the tiers to work: looked at by the rules of a plan, and again before a start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError
from optistack_hicache.storage.ready import missing_package, trouble

if TYPE_CHECKING:
    from optistack.context import EngineFacts
    from optistack.plan.plan import Plan
    from optistack.settings.resolved import ResolvedStack


def before_start(plan: Plan) -> None:
    """PlanRefusedError, in the words of the rules, when the storage tier of ``plan`` cannot work on this machine."""
    from optistack_hicache.rules_guards import FOLDER_FIX, FOLDER_MESSAGE, PACKAGE_FIX

    if (found := in_the_way(plan.stack)) is not None:
        raise PlanRefusedError(FOLDER_MESSAGE.format(detail=found), fix=FOLDER_FIX)
    if (found := lacking(plan.stack, plan.engine)) is not None:
        raise PlanRefusedError(f"{found}.", fix=PACKAGE_FIX)


def in_the_way(stack: ResolvedStack) -> str | None:
    """What keeps the storage tier from working in its folder, as a clause; None where nothing does."""
    tier = stack.tier(3)
    if tier is None or not tier.directory.value:
        return None
    return trouble(Path(tier.directory.value), tier.capacity_bytes.value)


def lacking(stack: ResolvedStack, engine: EngineFacts) -> str | None:
    """Which package a tier needs that the engine's environment has not, as a clause; None where none is known."""
    if not engine.installed or engine.python is None:
        return None
    for tier in stack.tiers:
        package = missing_package(engine.backend, tier.backend.value or "", engine.python)
        if package is not None:
            return f"The {tier.backend.value} tier needs the package {package}, and {engine.python} has none"
    return None
