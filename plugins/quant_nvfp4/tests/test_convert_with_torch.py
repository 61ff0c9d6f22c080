"""The tests of conversion, run with the torch of an installed engine: the development environment has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine_torch import run_with_torch

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent


def test_conversion_passes_its_tests_with_an_engines_torch() -> None:
    said = run_with_torch(HERE / "convert" / "with_torch", plugin=HERE.parent, TORCHDYNAMO_DISABLE="1")
    assert "skipped" not in said, said[-2000:]
