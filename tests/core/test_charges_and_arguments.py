"""What a plugin adds by hand: a charge or an argument that cannot be meant is refused where it is made."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from optistack.settings import EngineArgument, KVLayout, MemoryCharge, choose


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "some-flag"}, "'some-flag' is no flag"),
        ({"name": "--some-flag", "env": True}, "no name of an environment variable"),
        ({"name": "--some-flag", "versions": "new"}, "'new' is no version specifier"),
    ],
)
def test_an_argument_that_no_engine_could_have(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EngineArgument(backend="vllm", why="a test", **fields)


def test_arguments_that_are_fine() -> None:
    assert EngineArgument(backend="vllm", name="--some-flag", versions=">=0.30,<0.33", why="a test").value is None
    assert EngineArgument(backend="vllm", name="-O3", why="a test").name == "-O3"
    assert EngineArgument(backend="vllm", name="VLLM_X", value="1", env=True, why="a test").env


def test_memory_and_pages_are_no_negative_numbers() -> None:
    with pytest.raises(ValidationError):
        MemoryCharge(what="credit", per_gpu_bytes=-1)
    with pytest.raises(ValidationError):
        KVLayout(page_size_tokens=choose(0))
