"""What a case about prefix hits needs of an engine."""

from __future__ import annotations

import pytest

from optistack_conformance.engine import EngineInfo


def check_kept(engine: EngineInfo) -> None:
    """End the case as skipped where the engine says that it keeps no prefixes."""
    if engine.prefix_cache is False:
        pytest.skip("prefix caching is switched off")
