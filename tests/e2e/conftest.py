"""The installed program against a real engine on this machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optistack.facts.detect import cpu_isa

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "stacks" / "laptop.yaml"
FP8_KV = cpu_isa() in ("avx512", "amx")
"""Whether vLLM has FP8 KV on this machine's CPUs, and is quick in BF16."""
FP32 = "smollm2-135m-fp32"
ON_VLLM: tuple[str, ...] = ("--backend", "vllm", *(() if FP8_KV else ("--set", f"model.checkpoint=cache:{FP32}")))
LAPTOP_ON_VLLM = (*ON_VLLM, "--stack", LAPTOP, *(() if FP8_KV else ("--no-plugin", "kv-fp8")))
"""The laptop stack, or as much of it as vLLM has on this machine's CPUs."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Optistack:
    """Runs the program with a state folder of its own; engines and models come from the user's cache."""

    env: dict[str, str]

    def __call__(self, *words: str | Path, timeout_s: float = 600.0) -> Result:
        command = [sys.executable, "-m", "optistack.cli", *map(str, words)]
        done = subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
        return Result(done.returncode, done.stdout, done.stderr)


def fetch_narrow(program: Optistack) -> None:
    """The checkpoint of ON_VLLM, where that is not the stacks' own."""
    if not FP8_KV:
        fetched = program("model", "fetch", FP32)
        assert fetched.code == 0, fetched.err


@pytest.fixture(scope="session")
def optistack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Optistack]:
    state = tmp_path_factory.mktemp("state")
    program = Optistack({**os.environ, "XDG_STATE_HOME": str(state)})
    fetch_narrow(program)
    yield program
    program("down")
