"""The tests of the codec and its kernels, run with the torch and Triton of an installed engine: the development
environment has neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine_torch import run_with_torch

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent


def test_the_codec_passes_its_tests_with_an_engines_torch() -> None:
    # Kernels run in Triton's interpreter; compressed-tensors' rounding runs as written, not compiled.
    said = run_with_torch(HERE / "codec", plugin=HERE.parent, TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1")
    assert "skipped" not in said, said[-2000:]
