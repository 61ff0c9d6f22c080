"""The tests of calibration, run with the torch and transformers of an installed engine: the development environment has
neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine_torch import run_with_torch

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent


def test_calibration_passes_its_tests_with_an_engines_torch() -> None:
    run_with_torch(HERE / "calibration", plugin=HERE.parent)
