"""vLLM's own verdict on a launch: its parser and its configuration, run in its own environment with the GPU faked.

What is asked is what ``vllm serve`` does before it starts an engine: parse the arguments, build the configuration, and
beyond that the platform's choice of attention kernels for the model and its drafter, which vLLM makes while it loads
the model. Kernels for experts and linear layers are chosen from the loaded layers and stay unresolved.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from optistack.engines.guest import GuestError, run_inside
from optistack.errors import InputError
from optistack.facts.node import NodeFacts
from optistack.plan.plan import Plan
from optistack.preflight import Preflight, ResolvedChange, Verdict
from optistack_adapters.vllm.preflight_changes import changes
from optistack_adapters.vllm.preflight_checkpoints import Asked, Stage
from optistack_adapters.vllm.preflight_rules import explaining

_SCRIPT = Path(__file__).parent / "inside" / "resolve_vllm"
TIMEOUT_S = 300.0
"""Ten seconds of work; the rest is for a machine that does much else."""

COMPUTE_UNITS = {90: 132, 100: 148, 103: 148}
"""Streaming multiprocessors of H100 and H200, of B200 and of B300."""


class Outcome(BaseModel):
    """What vLLM made of one launch; fields as in ``inside/resolve_vllm.py``."""

    model_config = ConfigDict(frozen=True)

    accepted: bool
    stage: str
    broken: bool
    error: str
    asked: dict[str, Any]
    resolved: dict[str, Any]
    settled: dict[str, Any]
    warnings: tuple[str, ...]
    unresolved: dict[str, str]


class Answer(BaseModel):
    """vLLM's answer to several launches. ``stand_ins`` are modules of its CUDA build that were not there."""

    model_config = ConfigDict(frozen=True)

    version: str
    platform: str
    device: str
    stand_ins: tuple[str, ...]
    seconds: float
    outcomes: tuple[Outcome, ...]


def preflight(plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight:
    """What the vLLM of ``python`` makes of the first launch of ``plan``.

    Raises InputError where that environment lacks a module that vLLM needs.
    """
    launch = plan.launches[0]
    with tempfile.TemporaryDirectory(prefix="optistack-") as scratch:
        stage = Stage(plan.model, launch, Path(scratch), [use.options for use in plan.plugins])
        answer = ask(python, [stage.asked()], node=plan.share, env=env)
        outcome = answer.outcomes[0]
        said = changes(launch, plan.stack, outcome)
        message = stage.real(outcome.error)
    faked = plan.share.device == "cuda"
    return _verdict(
        plan,
        outcome,
        message=message,
        said=said,
        unresolved=[*stage.unresolved, *_unresolved(outcome)],
        against=f"vllm {answer.version} in {python}" + _build(answer, faked=faked),
        gpu_faked=answer.device if faked else "",
    )


def ask(python: Path, launches: Sequence[Asked], *, node: NodeFacts, env: Mapping[str, str] | None = None) -> Answer:
    """Resolve ``launches`` in one process, as if on ``node`` (its GPUs faked; a CPU is the machine's own).

    Raises InputError for an environment that lacks a module, or whose vLLM does not load.
    """
    with tempfile.TemporaryDirectory(prefix="optistack-") as scratch:
        request = Path(scratch, "launches.json")
        request.write_text(json.dumps([_plain(launch) for launch in launches]), encoding="utf-8")
        variables = {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1",
            **(env or {}),
            # Nothing is left where a real engine keeps what it found out, and no GPU is looked at.
            "VLLM_CACHE_ROOT": scratch,
            "CUDA_VISIBLE_DEVICES": "",
        }
        if node.device == "cuda":
            variables["VLLM_TARGET_DEVICE"] = "cuda"
        try:
            answer = run_inside(
                python,
                str(_SCRIPT),
                {"gpu": _gpu(node), "launches": str(request)},
                env=variables,
                timeout_s=TIMEOUT_S,
            )
        except GuestError as error:
            raise _broken(python, error) from error
    return Answer.model_validate(answer)


def _plain(launch: Asked) -> dict[str, Any]:
    env = {name: value for name, value in launch.env.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {"argv": list(launch.argv), "env": env, "tokenizer": launch.tokenizer}


def _gpu(node: NodeFacts) -> dict[str, Any] | None:
    if node.gpu is None:
        return None
    return {
        "name": node.gpu.name,
        "sm": node.gpu.sm,
        "memory_bytes": node.gpu.cuda_bytes or node.gpu.hbm_bytes,
        "gpus": node.gpus,
        "compute_units": COMPUTE_UNITS.get(node.gpu.sm, 132),
    }


def _broken(python: Path, error: GuestError) -> InputError:
    if error.kind == "ModuleNotFoundError" and error.module:
        package = error.module.partition(".")[0]
        return InputError(
            f"The vllm in the environment of {python} does not load, for want of the module {error.module!r}.",
            fix=f"Install what brings it: {python} -m pip install {package}",
        )
    return InputError(
        f"The vllm in the environment of {python} gave no answer: {error.kind}: {error.message.rstrip('.')}.",
        fix="Mend that environment, or leave the preflight out.",
    )


def _build(answer: Answer, *, faked: bool) -> str:
    if not faked or not answer.stand_ins:
        return ""
    return ", with stand-ins for the kernels of its CUDA build"


def _unresolved(outcome: Outcome) -> Iterable[str]:
    for name, why in outcome.unresolved.items():
        yield f"{name}: {why}"


def _verdict(
    plan: Plan,
    outcome: Outcome,
    *,
    message: str,
    said: Sequence[ResolvedChange],
    unresolved: Sequence[str],
    against: str,
    gpu_faked: str,
) -> Preflight:
    if outcome.broken:
        return Preflight(
            verdict=Verdict.NOT_RUN,
            message=f"vLLM's resolution does not run to its end here: {message}",
            unresolved=tuple(unresolved),
            against=against,
            gpu_faked=gpu_faked,
        )
    verdict = Verdict.ACCEPTED if outcome.accepted else Verdict.REJECTED
    return Preflight(
        verdict=verdict,
        message=message or _choices(outcome),
        explained_by=() if outcome.accepted else explaining(message, plan.findings),
        changes=tuple(said),
        unresolved=tuple(unresolved),
        against=against,
        gpu_faked=gpu_faked,
    )


def _choices(outcome: Outcome) -> str:
    """What vLLM would take where the launch leaves it the choice."""
    settled = outcome.settled
    words = []
    if "attention" in settled:
        words.append(f"attention by {settled['attention']}")
    if "draft_attention" in settled:
        words.append(f"the draft's by {settled['draft_attention']}")
    if "use_v2_model_runner" in settled:
        words.append("V2 model runner" if settled["use_v2_model_runner"] else "V1 model runner")
    return f"vLLM takes {', '.join(words)}." if words else ""
