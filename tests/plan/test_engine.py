"""Which engine a plan is for, when the stack names both a Python and a version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from optistack.errors import InputError
from optistack.plan import engine
from optistack.stack import ModelSection, StackSpec
from optistack.stack.spec import EngineSection
from optistack_adapters.vllm import backend as vllm


@pytest.mark.parametrize("version", [None, "0.32.0", "0.33.0"])
def test_the_version_of_a_named_python_must_be_the_one_asked_for(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    def probe(*_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(version="0.32.0+cpu", device="cpu", distribution="vllm")

    monkeypatch.setattr(engine, "probe_engine", probe)
    named = EngineSection(python="/venv/bin/python", version=version)
    spec = StackSpec(model=ModelSection(checkpoint="a/b"), backend="vllm", engine=named)
    if version == "0.33.0":
        with pytest.raises(InputError, match="/venv/bin/python has vllm 0.32.0\\+cpu, and 0.33.0 is asked for"):
            engine.find_engine(spec, vllm, "cpu")
    else:
        assert engine.find_engine(spec, vllm, "cpu").facts.version == "0.32.0+cpu"
