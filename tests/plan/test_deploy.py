"""Before a start: the machine, the checkpoint and every plugin of the plan are asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from optistack import hookimpl
from optistack.errors import InputError, OptistackError, PlanRefusedError
from optistack.facts.node import NodeFacts
from optistack.host import Host
from optistack.plan import deploy
from optistack.plan.plan import Plan, PluginUse
from optistack.plugin import Domain, PluginInfo

MakePlan = Callable[..., Plan]


@pytest.mark.parametrize(
    ("lacks", "error", "says"),
    [
        ("gpu", PlanRefusedError, "this machine has no GPU"),
        ("weights", InputError, "has a config and no weights"),
        ("weights, made up", None, ""),
        ("disk", PlanRefusedError, "The disk is gone"),
        ("nothing", None, ""),
    ],
)
def test_what_is_lacking_is_said_before_a_start(
    make_plan: MakePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
    error: type[OptistackError] | None,
    says: str,
) -> None:
    looker = ModuleType("looker")
    seen: list[str | None] = []

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name="looker", domain=Domain.CACHE, version="1.0", summary="Looks.")

    @hookimpl
    def optistack_before_start(plan: Plan) -> None:
        seen.append(plan.engine.python)
        if lacks == "disk":
            raise PlanRefusedError("The disk is gone.", fix="Plug it in.")

    vars(looker).update(optistack_plugin=optistack_plugin, optistack_before_start=optistack_before_start)
    host = Host()
    host.register(looker, name="looker")
    (tmp_path / "config.json").write_text("{}")
    if "weights" not in lacks:
        (tmp_path / "model.safetensors").write_bytes(b"")
    plan = make_plan(plugins=(PluginUse(name="looker", version="1.0", options={}),))
    model = plan.spec.model.model_copy(update={"checkpoint": str(tmp_path)})
    made_up = ("--load-format=dummy",) if lacks == "weights, made up" else ()
    plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"model": model, "engine_args": made_up})})
    changes = {"gpu": None, "gpus": 0} if lacks == "gpu" else {}
    here: NodeFacts = plan.node.model_copy(update=changes)
    monkeypatch.setattr(deploy, "detect_node", lambda: here)
    if error is None:
        deploy.check_start(plan, host, "/engine/python")
    else:
        with pytest.raises(error, match=says):
            deploy.check_start(plan, host, "/engine/python")
    assert seen == (["/engine/python"] if lacks in ("disk", "nothing", "weights, made up") else [])
