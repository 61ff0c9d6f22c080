"""From a plan to what is started here: ports, folders, GPUs of this machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optistack import paths
from optistack.apply.launch import DeploymentSpec, ProcessSpec
from optistack.apply.ports import free_port
from optistack.engines.recipes import RECIPES
from optistack.errors import InputError, PlanRefusedError
from optistack.facts.detect import detect_node, visible_devices
from optistack.facts.node import NodeFacts
from optistack.host import Host
from optistack.launch import FrontLaunch, Launch, Place
from optistack.plan.front import process_name
from optistack.plan.plan import Plan

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
"""Addresses that one listens on but does not connect to, and where a local client goes instead."""


SOCKET_PATH_BYTES = 107
"""sun_path of unix(7) less its end."""
_SOCKET = re.compile(r'ipc://([^"\s,]+)')

WEIGHT_FILES = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf"))
"""What engines load weights from."""


def deployment_of(plan: Plan, python: str | None, engine_env: Mapping[str, str]) -> DeploymentSpec:
    """What starts ``plan`` on this machine: one process for each replica, and the front before them if it has one.

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
    ports = _Ports()
    front_port = plan.spec.serving.port if plan.front is not None else None
    if front_port is not None:
        ports.taken.add(front_port)
    replicas = tuple(
        _replica(plan, launch, python, _replica_port(plan, launch, ports), engine_env) for launch in plan.launches
    )
    front = () if plan.front is None else (_front(plan, plan.front, replicas, ports),)
    return DeploymentSpec(
        name=plan.spec.name,
        processes=(*replicas, *front),
        plan_hash=plan.hash(),
        endpoints=tuple(process.url for process in front or replicas),
        plan=plan.model_dump(mode="json"),
    )


def check_room(plan: Plan) -> None:
    """Raise InputError where ``plan`` cannot be started beside what runs here: its name, its folder or a port that the
    stack names is taken. Looked at again when it is started; until then planning may go on for half a minute."""
    from optistack.apply.start import require_room

    first = plan.spec.serving.port
    if first is None:
        ports = []
    elif plan.front is not None:
        ports = [(plan.front.host, first)]
    else:
        ports = [(launch.host, first + launch.replica) for launch in plan.launches]
    require_room(plan.spec.name, ports)


def check_start(plan: Plan, host: Host, python: str | None) -> None:
    """Whether ``plan`` can be started on this machine, with the engine of ``python``: what everything that starts one
    calls before it does.

    Raises PlanRefusedError or InputError for what the machine, the checkpoint or a plugin's look at the machine lacks.
    """
    check_machine(plan, detect_node())
    check_weights(plan)
    ask_plugins(plan, host, python)


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
    if {"dummy", "--load-format=dummy"} & {*plan.spec.engine_args}:  # the engine makes up weights
        return
    if folder.is_dir() and not any(file.suffix in WEIGHT_FILES for file in folder.iterdir()):
        raise InputError(
            f"The checkpoint folder {folder} has a config and no weights: it can be planned and not started.",
            fix="Give the folder of the whole checkpoint.",
        )


def ask_plugins(plan: Plan, host: Host, python: str | None) -> None:
    """Ask every plugin of ``plan`` whether it can be started here, with the engine of ``python``.

    PlanRefusedError, as the first plugin that refuses says.
    """
    engine = plan.engine.model_copy(update={"installed": python is not None, "python": python})
    here = plan.model_copy(update={"engine": engine})
    for plugin in host.select(use.name for use in plan.plugins):
        host.call(plugin, "optistack_before_start", type(None), plan=here)


def _replica(plan: Plan, launch: Launch, python: str, port: int, engine_env: Mapping[str, str]) -> ProcessSpec:
    name = process_name(launch)
    folder = _folder(plan, name)
    words = tuple(launch.argv(python, port=port, folder=folder))
    _check_sockets(words)
    # Empty is unset: an engine takes six seconds longer to import when its compiled files are not kept.
    env = {"PYTHONDONTWRITEBYTECODE": "", **engine_env, **launch.env(port=port, folder=folder)}
    if launch.gpus:
        env["CUDA_VISIBLE_DEVICES"] = visible_devices(launch.gpus)
    return ProcessSpec(
        name=name,
        argv=words,
        env=env,
        files={f"{name}/{file.name}": file.content for file in launch.files},
        folders=(name,) if launch.needs_folder() else (),
        host=launch.host,
        port=port,
        ready_url=_url(launch.host, port) + launch.ready_path,
        ready_timeout_s=plan.spec.serving.ready_timeout_s,
        # A front goes on with the other replicas; without one, clients of the one that is gone have nobody.
        group="replicas" if plan.front is not None else "",
    )


def _front(plan: Plan, front: FrontLaunch, replicas: Sequence[ProcessSpec], ports: _Ports) -> ProcessSpec:
    port = plan.spec.serving.port or ports.free(front.host)
    folder = _folder(plan, front.name)
    further = {name: ports.free("127.0.0.1") for name in front.ports}
    there = tuple((replica.url, _folder(plan, replica.name)) for replica in replicas)
    place = Place(port, folder, there, further)
    return ProcessSpec(
        name=front.name,
        argv=tuple(front.argv_at(sys.executable, place)),
        env=front.env(port=port, folder=folder),
        files={f"{front.name}/{file.name}": place.fill_text(file.content) for file in front.files},
        folders=(front.name,) if front.needs_folder() else (),
        host=front.host,
        port=port,
        ports=further,
        ready_url=_url(front.host, port) + front.ready_path,
        ready_timeout_s=plan.spec.serving.ready_timeout_s,
    )


def _check_sockets(words: Sequence[str]) -> None:
    """Raise InputError where a ZeroMQ address in ``words`` names a socket whose path the kernel does not take."""
    for path in _SOCKET.findall(" ".join(words)):
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise InputError(
                f"The path of a socket is too long for the system, {len(os.fsencode(path))} bytes: {path}",
                fix=f"Set XDG_STATE_HOME to a shorter folder; {SOCKET_PATH_BYTES} bytes are the limit.",
            )


def _folder(plan: Plan, process_name: str) -> str:
    return str(paths.deployments_dir() / plan.spec.name / process_name)


@dataclass
class _Ports:
    """Free ports that differ from each other."""

    taken: set[int] = field(default_factory=set)

    def free(self, host: str) -> int:
        while (port := free_port(host)) in self.taken:
            pass
        self.taken.add(port)
        return port


def _replica_port(plan: Plan, launch: Launch, ports: _Ports) -> int:
    """The stack's port and those after it, or a free one; the stack's is the front's where there is one."""
    first = plan.spec.serving.port
    if first is not None and plan.front is None:
        return first + launch.replica
    return ports.free(launch.host)


def _url(host: str, port: int) -> str:
    address = ANY_ADDRESS.get(host) or (f"[{host}]" if ":" in host else host)
    return f"http://{address}:{port}"
