"""Lock files: a plan, saved, that applies again bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import optistack
from optistack.errors import InputError
from optistack.facts.model import ModelFacts
from optistack.files import write_file
from optistack.host import Host
from optistack.plan.plan import Plan
from optistack.secrets import secrets_of

FORMAT = 1

_HEAD_CHARACTERS = 200
"""A lock file says what it is at its beginning."""

_SHAPE = ("architecture", "layers", "dense_layers", "hidden", "intermediate", "vocab", "attention", "moe")
"""What must be equal when a lock was planned from a config alone and the checkpoint itself is here now."""


def write_lock(plan: Plan, path: Path) -> None:
    """Save ``plan`` at ``path``, whole or not at all; for its owner alone where the launch carries a secret.

    Raises InputError when the folder cannot be written to.
    """
    content = {"optistack_lock": FORMAT, "hash": plan.hash(), "plan": plan.lasting()}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_file(path, text, mode=0o600 if secrets_of(plan) else 0o644)


def is_lock(path: Path) -> bool:
    """Whether ``path`` holds a lock file and not a stack file, whatever its name.

    Where it cannot be read, its name says what it was meant to be.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return '"optistack_lock"' in file.read(_HEAD_CHARACTERS)
    except OSError:
        return path.suffix in (".json", ".lock")


def read_lock(path: Path) -> Plan:
    """The plan in the lock file ``path``.

    Raises InputError when it is none, was made by another optistack, or was edited.
    """
    again = f"Make it again: optistack plan --lock {path}"
    content = _read(path)
    if content.get("optistack_lock") != FORMAT or not isinstance(content.get("plan"), dict):
        raise InputError(f"{path} is not a lock file of this optistack.", fix=again)
    made_by = content["plan"].get("optistack_version")
    if made_by != optistack.__version__:
        raise InputError(f"{path} was made by optistack {made_by}; this is {optistack.__version__}.", fix=again)
    try:
        plan = Plan.model_validate_json(json.dumps(content["plan"]))
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InputError(f"{path} was edited: {place} is not what a plan has there.", fix=again) from error
    if plan.hash() != content.get("hash"):
        raise InputError(f"{path} was edited: its plan no longer has the hash it was saved with.", fix=again)
    return plan


def check_checkpoint(plan: Plan, now: ModelFacts, path: Path) -> None:
    """Raise InputError when the checkpoint on this machine is not the one that the lock file ``path`` was made for.

    A lock that was planned from a config alone is held against the shape and the precisions of the checkpoint.
    """
    then = plan.model
    if then.evidence == now.evidence:
        differs = "" if then.fingerprint == now.fingerprint else "its config or its tensors differ"
    else:
        differs = next((f"its {name} differs" for name in _SHAPE if getattr(then, name) != getattr(now, name)), "")
        parts = sorted({part.name for part in then.components})
        for name in parts:
            before, after = then.precision_of(name), now.precision_of(name)
            if not differs and after is not None and before != after:
                differs = f"its {name.replace('_', ' ')} are {after}, not {before}"
    if differs:
        raise InputError(
            f"{path} was made for another checkpoint than {now.source}: {differs}.",
            fix=f"Make it again: optistack plan --lock {path}",
        )


def check_plugins(plan: Plan, host: Host, path: Path) -> None:
    """Raise InputError when a plugin of the lock file ``path`` is not here in the version it was made with."""
    missing = host.missing(use.name for use in plan.plugins)
    if missing:
        wanted = [f"optistack-{use.name}=={use.version}" for use in plan.plugins if use.name in missing]
        raise InputError(
            f"{path} was made with plugins that are not here: {', '.join(missing)}.",
            fix=f"Install {', '.join(wanted)}, or make it again: optistack plan --lock {path}",
        )
    for use in plan.plugins:
        here = host.get(use.name).info.version
        if here != use.version:
            raise InputError(
                f"{path} was made with {use.name} {use.version}; {here} is installed.",
                fix=f"Install optistack-{use.name}=={use.version}, or make it again: optistack plan --lock {path}",
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no lock file {path}.", fix=f"Make it: optistack plan --lock {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", fix="Give a lock file.") from error
    except ValueError as error:
        raise InputError(f"{path} is not a lock file: it is no JSON.", fix="Give a lock file.") from error
    return content if isinstance(content, dict) else {}
