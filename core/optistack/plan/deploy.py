"""From a plan to what is started here: ports, folders, GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from optistack import paths
from optistack.apply.launch import DeploymentSpec, ProcessSpec
from optistack.apply.ports import free_port
from optistack.engines.recipes import RECIPES
from optistack.errors import InputError, PlanRefusedError
from optistack.facts.node import NodeFacts
from optistack.launch import Launch
from optistack.plan.plan import Plan

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
"""Addresses that one listens on but does not connect to, and where a local client goes instead."""


WEIGHT_FILES = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf"))
"""What engines load weights from."""


def deployment_of(plan: Plan, python: str | None, engine_env: Mapping[str, str]) -> DeploymentSpec:
    """What starts ``plan`` on this machine: one process for each replica.

    ``python`` is the engine's, ``engine_env`` what its environment needs besides the launch's variables. Ports that
    the stack does not name are picked free. Raises InputError when there is no engine.
    """
    if python is None:
        build = f"{plan.engine.backend}-cpu" if plan.node.device == "cpu" else plan.engine.backend
        known = any(recipe.name == build for recipe in RECIPES)
        install = f", or run: optistack engine install {build}" if known else ""
        raise InputError(
            f"There is no {plan.engine.backend} {plan.engine.version} for {plan.node.device} on this machine.",
            fix=f"Name its Python with --engine-python{install}.",
        )
    processes = tuple(
        _process(plan, launch, python, port, engine_env)
        for launch, port in zip(plan.launches, _ports(plan), strict=True)
    )
    return DeploymentSpec(
        name=plan.spec.name,
        processes=processes,
        plan_hash=plan.hash(),
        endpoints=tuple(_url(process.host, process.port) for process in processes),
        plan=plan.model_dump(mode="json"),
    )


def check_machine(plan: Plan, here: NodeFacts) -> None:
    """Raise PlanRefusedError when this machine, ``here``, lacks the GPUs or the RAM that ``plan`` counts on."""
    if plan.node.gpu is not None:
        needed = len(plan.launches) * plan.share.gpus
        has = f"{here.gpus} x {here.gpu.name}" if here.gpu else "no GPU"
        if here.gpu is None or here.gpu.kind != plan.node.gpu.kind or here.gpus < needed:
            raise PlanRefusedError(
                f"The plan needs {needed} x {plan.node.gpu.name}, and this machine has {has}.",
                fix="Apply it on such a machine, or plan for this one with --node detect.",
            )
    host = sum(line.bytes for line in plan.budget.host) * len(plan.launches)
    if host > here.host_ram_bytes:
        raise PlanRefusedError(
            f"The plan takes {host / 1e9:.1f} GB of host RAM, and this machine has {here.host_ram_bytes / 1e9:.1f} GB.",
            fix="Plan for this machine with --node detect, or make the host tier smaller.",
        )


def check_weights(plan: Plan) -> None:
    """Raise InputError when the checkpoint is a folder without weights, which an engine notices only after a minute."""
    folder = Path(plan.spec.model.checkpoint)
    if "dummy" in plan.spec.engine_args:  # --load-format dummy: the engine makes up weights
        return
    if folder.is_dir() and not any(file.suffix in WEIGHT_FILES for file in folder.iterdir()):
        raise InputError(
            f"The checkpoint folder {folder} has a config and no weights: it can be planned and not started.",
            fix="Give the folder of the whole checkpoint.",
        )


def _process(plan: Plan, launch: Launch, python: str, port: int, engine_env: Mapping[str, str]) -> ProcessSpec:
    name = f"replica-{launch.replica}"
    folder = str(paths.deployments_dir() / plan.spec.name / name)
    # Empty is unset: an engine takes six seconds longer to import when its compiled files are not kept.
    env = {"PYTHONDONTWRITEBYTECODE": "", **engine_env, **launch.env(port=port, folder=folder)}
    if launch.gpus:
        env["CUDA_VISIBLE_DEVICES"] = _visible(launch.gpus)
    return ProcessSpec(
        name=name,
        argv=tuple(launch.argv(python, port=port, folder=folder)),
        env=env,
        files={f"{name}/{file.name}": file.content for file in launch.files},
        host=launch.host,
        port=port,
        ready_url=_url(launch.host, port) + launch.ready_path,
        ready_timeout_s=plan.spec.serving.ready_timeout_s,
    )


def _ports(plan: Plan) -> list[int]:
    """The stack's port and those after it, or free ones that differ."""
    first = plan.spec.serving.port
    if first is not None:
        return [first + index for index in range(len(plan.launches))]
    ports: list[int] = []
    while len(ports) < len(plan.launches):
        port = free_port(plan.launches[len(ports)].host)
        if port not in ports:
            ports.append(port)
    return ports


def _visible(gpus: tuple[int, ...]) -> str:
    """CUDA_VISIBLE_DEVICES for ``gpus``, which count from 0 among those that are visible to us."""
    ours = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return ",".join(ours[gpu] if gpu < len(ours) else str(gpu) for gpu in gpus)


def _url(host: str, port: int) -> str:
    address = ANY_ADDRESS.get(host) or (f"[{host}]" if ":" in host else host)
    return f"http://{address}:{port}"
