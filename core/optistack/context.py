"""What a plugin's hook gets to see while a stack is being resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from optistack.facts.model import ModelFacts
    from optistack.facts.node import NodeFacts
    from optistack.settings.resolved import ResolvedStack
    from optistack.stack.spec import ParallelSection, WorkloadSection


class EngineFacts(BaseModel):
    """The engine that the plan is for. Filled in by its adapter, for a version and a device.

    ``device``  ``cuda`` or ``cpu``
    ``traits``  facts that differ between engines and versions and that plugins reckon with:

    ======================== ===============================================================================
    aux_hidden_state_copies  how often a drafter's captured hidden states lie in device memory at once
    default_prefill_tokens   tokens of one prefill pass when nobody sets ``serving.chunked_prefill_tokens``
    host_kv_copies           ``rank``: each rank keeps what it has, also what others have; ``shared``: one copy
    host_tier_reserve_bytes  host RAM that the engine itself leaves free beside its tier
    speculation_methods      methods that this engine has on this device
    kv_dtypes                KV dtypes that it has on this device
    weight_formats           weight precisions that it has on this device
    storage_backends         storage tiers that it has on this device
    host_tier                whether it has a host tier on this device
    host_tier_shm            its native one is in /dev/shm: ``always``, or only with a storage tier of files (``file``)
    ======================== ===============================================================================
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    version: str
    device: str
    installed: bool = False
    python: str | None = None
    traits: dict[str, Any] = {}

    def trait(self, name: str, default: Any = None) -> Any:
        return self.traits.get(name, default)

    def host_tier_in_shm(self, storage: str | None) -> bool:
        """Whether the engine's native host tier is in /dev/shm, with the tier ``storage`` below it or none."""
        when = self.trait("host_tier_shm")
        return when == "always" or (when == "file" and storage == "file")


@dataclass(frozen=True)
class PlanContext:
    """The argument of the domain hooks.

    ``node`` is the share of one replica: its GPUs and its part of the host's RAM. ``options`` is an instance of the
    plugin's own option model. ``so_far`` holds the merged settings of all hooks called before this one.
    ``load_model(reference, config)`` reads the facts of another checkpoint, such as a draft's; it never downloads.
    """

    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    parallel: ParallelSection
    workload: WorkloadSection
    options: Any
    so_far: ResolvedStack
    load_model: Callable[[str, str | None], ModelFacts]
