"""What this machine must have for the tiers to work: looked at by the rules of a plan, and again before a start."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError
from optistack.facts.node import GIB
from optistack_hicache.storage.ready import missing_package, trouble

if TYPE_CHECKING:
    from optistack.context import EngineFacts
    from optistack.plan.plan import Plan
    from optistack.settings.resolved import ResolvedStack


SHM = "/dev/shm"
SHM_SPARE_BYTES = GIB
"""For the engine's other shared memory: queues between its processes, and NCCL's."""
LEFT_OVER = "vllm_offload_*"
"""What vLLM calls its host tiers there; one that is killed leaves them (v1/kv_offload/cpu/shared_offload_region.py).
A deployment removes its own, as a rule at once, and at ``down`` where its supervisor was killed with it."""


def before_start(plan: Plan) -> None:
    """PlanRefusedError, in the words of the rules, when a tier of ``plan`` cannot work on this machine."""
    from optistack_hicache.rules_guards import FOLDER_FIX, FOLDER_MESSAGE, PACKAGE_FIX

    if (found := in_the_way(plan.stack)) is not None:
        raise PlanRefusedError(FOLDER_MESSAGE.format(detail=found), fix=FOLDER_FIX)
    if (found := lacking(plan.stack, plan.engine)) is not None:
        raise PlanRefusedError(f"{found}.", fix=PACKAGE_FIX)
    check_shm(plan)


def check_shm(plan: Plan) -> None:
    """PlanRefusedError when the host tiers of all replicas do not fit into what /dev/shm has free."""
    host, storage = plan.stack.tier(2), plan.stack.tier(3)
    if host is None or host.backend.value != "native" or not host.capacity_bytes.value:
        return
    if not plan.engine.host_tier_in_shm(storage.backend.value if storage is not None else None):
        return
    wanted = host.capacity_bytes.value * len(plan.launches)
    try:
        disk = os.statvfs(SHM)
    except OSError as error:
        raise PlanRefusedError(
            f"The host tier takes {wanted / GIB:.1f} GiB of {SHM}, which cannot be used: {error.strerror}.",
            fix="Mount a tmpfs there that holds it, or leave hicache out (--no-plugin hicache).",
        ) from None
    size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    if wanted + SHM_SPARE_BYTES <= free:
        return
    larger = math.ceil((wanted + size - free + SHM_SPARE_BYTES) / GIB)
    used = size - free > GIB / 20
    taken = f", of which {(size - free) / GIB:.1f} are taken already" if used else ""
    left = f"{SHM}/{LEFT_OVER} of no running engine was left by one that was killed"
    swept = f" {left}: `optistack down` removes those of its own, others you." if used else ""
    raise PlanRefusedError(
        f"The host tier takes {wanted / GIB:.1f} GiB of {SHM}, which has {size / GIB:.1f}{taken}.",
        fix=f"mount -o remount,size={larger}G {SHM} (in a container: start it with --shm-size={larger}g), "
        f"or lower host_gib.{swept}",
    )


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
