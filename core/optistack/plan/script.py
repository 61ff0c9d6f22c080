"""The launch of a plan as a POSIX shell script that needs neither optistack nor its Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from optistack.launch import FOLDER, PORT, RUN, FrontLaunch, Launch
from optistack.plan.front import process_name
from optistack.plan.plan import Plan
from optistack.plan.script_front import front_lines

_PLACEHOLDER = re.compile(rf"({re.escape(PORT)}|{re.escape(FOLDER)}|{re.escape(RUN)})")
_SHELL = {PORT: '"$PORT"', FOLDER: '"$FOLDER"', RUN: '"$(cat /proc/sys/kernel/random/uuid)"'}
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+-]+")


def script(plan: Plan, *, engine_env: Mapping[str, str] | None = None, default_port: int = 30000) -> str:
    """A script that starts one replica: ``sh launch.sh [MORE ENGINE ARGUMENTS]``; where the plan has several,
    ``sh launch.sh [REPLICA] [MORE ENGINE ARGUMENTS]``. Where something stands before them, ``sh launch.sh router`` (as
    it is called) starts that; the replicas listen on the ports after its own.

    It runs the engine's Python, or its container when the stack names an image. ``engine_env`` is what the engine's
    own environment needs besides the launch's variables. PYTHON, PORT, FOLDER and CONTAINER can be set from outside.
    """
    lines = [*_head(plan, default_port), ""]
    if plan.front is not None:
        lines += _behind_front(plan, plan.front, engine_env or {})
    elif len(plan.launches) == 1:
        lines += _replica(plan, plan.launches[0], engine_env or {})
    else:
        lines += ["REPLICA=${1:-0}", "[ $# -eq 0 ] || shift", "PORT=$((PORT + REPLICA))", 'case "$REPLICA" in']
        for launch in plan.launches:
            lines += [f"{launch.replica})", *_replica(plan, launch, engine_env or {}), ";;"]
        last = plan.launches[-1].replica
        lines += ["*)", f'    echo "There is no replica $REPLICA: 0 to {last}." >&2', "    exit 2", "    ;;", "esac"]
    return "\n".join(lines) + "\n"


def _head(plan: Plan, default_port: int) -> list[str]:
    port = plan.spec.serving.port or default_port
    engine = f"{plan.engine.backend} {plan.engine.version}"
    lines = [
        "#!/bin/sh",
        f"# Stack {plan.spec.name} on {engine}, planned by optistack {plan.optistack_version} for {plan.node.name}.",
        f"# Plan {plan.hash()[:16]}. `optistack plan` says who set each flag and why.",
    ]
    if plan.refused:
        lines.append("# The plan was REFUSED: this launch is not expected to work.")
    lines += ["set -eu", f"PORT=${{PORT:-{port}}}"]
    if plan.spec.engine.image is None:
        lines.append(f"PYTHON=${{PYTHON:-{shlex.quote(plan.engine.python or 'python3')}}}")
    else:
        lines.append("CONTAINER=${CONTAINER:-docker}")
    if plan.front is not None:
        lines += [f"FOLDER=${{FOLDER:-${{TMPDIR:-/tmp}}/optistack-{plan.spec.name}}}", "BASE=$FOLDER"]
    elif any(launch.needs_folder() for launch in plan.launches):
        lines += ["FOLDER=${FOLDER:-$(mktemp -d)}", 'mkdir -p "$FOLDER"']
    return lines


def _behind_front(plan: Plan, front: FrontLaunch, engine_env: Mapping[str, str]) -> Iterator[str]:
    yield from ("WHAT=${1:-0}", "[ $# -eq 0 ] || shift", 'case "$WHAT" in')
    for launch in plan.launches:
        yield f"{launch.replica})"
        yield f"PORT=$((PORT + {launch.replica + 1})) FOLDER=$BASE/{process_name(launch)}"
        yield 'mkdir -p "$FOLDER"'
        yield from _replica(plan, launch, engine_env)
        yield ";;"
    yield from (f"{front.name})", f"FOLDER=$BASE/{front.name}", 'mkdir -p "$FOLDER"')
    yield from front_lines(front, [process_name(launch) for launch in plan.launches])
    yield from (";;", "*)", f'    echo "There is no $WHAT: {front.name}, or 0 to {len(plan.launches) - 1}." >&2')
    yield from ("    exit 2", "    ;;", "esac")


def _replica(plan: Plan, launch: Launch, engine_env: Mapping[str, str]) -> Iterator[str]:
    for file in launch.files:
        yield from _heredoc(file.name, file.content)
    variables = {**engine_env, **{variable.name: variable.value for variable in launch.variables}}
    image = plan.spec.engine.image
    if image is None:
        if launch.gpus and "CUDA_VISIBLE_DEVICES" not in variables:
            yield f"export CUDA_VISIBLE_DEVICES={_gpus(launch)}"
        for name, value in variables.items():
            yield f"export {name}={quote(value)}"
        yield from _command('exec "$PYTHON"', [], launch)
        return
    variables.pop("CUDA_VISIBLE_DEVICES", None)  # inside, the container's GPUs count from 0
    options = [f"-e {quote(f'{name}={value}')}" for name, value in variables.items()]
    yield from _command(
        'exec "$CONTAINER" run --rm',
        [*_container_options(launch), *_mounts(plan, launch), *options, f"--entrypoint python3 {quote(image)}"],
        launch,
    )


def _command(start: str, options: Iterable[str], launch: Launch) -> Iterator[str]:
    words = [" ".join(quote(word) for word in launch.command)]
    for argument in launch.arguments:
        words.append(quote(argument.flag) + ("" if argument.value is None else f" {quote(argument.value)}"))
    lines = [start, *options, *words, '"$@"']
    yield " \\\n    ".join(lines)


def _container_options(launch: Launch) -> list[str]:
    device = f'"device={_gpus(launch)}"'
    gpus = [f"--gpus {quote(device)}"] if launch.gpus else []
    # NCCL and the engines' own shared memory need the host's IPC; pinned host KV needs unlimited locked memory.
    return [*gpus, "--network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864"]


def _mounts(plan: Plan, launch: Launch) -> list[str]:
    """Folders that the engine reads or writes, at the same path inside the container."""
    tier = plan.stack.tier(3)
    read = [plan.spec.model.checkpoint, plan.stack.speculation.draft_checkpoint.value, plan.stack.kv.scales_file.value]
    mounts = [f"-v {quote(f'{path}:{path}:ro')}" for path in dict.fromkeys(read) if path and path.startswith("/")]
    if tier is not None and tier.directory.value:
        mounts.append(f"-v {quote(f'{tier.directory.value}:{tier.directory.value}')}")
    if any(path and not path.startswith("/") for path in read):
        mounts.append('-v "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface"')
        mounts.append("-e HF_TOKEN")  # the caller's own, where it has one: no secret is in the script
    if launch.needs_folder():
        mounts.append('-v "$FOLDER:$FOLDER"')
    return mounts


def _heredoc(name: str, content: str) -> Iterator[str]:
    mark = "END_OF_FILE"
    while mark in content.splitlines():
        mark += "_"
    # A heredoc ends with a newline of its own.
    ends = content if content.endswith("\n") else content + "\n"
    if "/" in name:
        yield f'mkdir -p "$FOLDER"/{shlex.quote(name.rpartition("/")[0])}'
    yield f"cat > \"$FOLDER\"/{shlex.quote(name)} <<'{mark}'\n{ends}{mark}"


def _gpus(launch: Launch) -> str:
    return ",".join(str(gpu) for gpu in launch.gpus)


def quote(word: str) -> str:
    """``word`` for the shell, with the launch's placeholders as its variables."""
    parts = [part for part in _PLACEHOLDER.split(word) if part]
    return (
        "".join(_SHELL.get(part) or (part if _PLAIN.fullmatch(part) else shlex.quote(part)) for part in parts) or "''"
    )
