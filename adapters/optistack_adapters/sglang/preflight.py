"""What SGLang's own argument resolution makes of a launch.

The resolution (``prepare_server_args``, ``resolve_once``, ``check_server_args``) runs in SGLang's environment, with the
plan's GPU faked, and needs of a checkpoint only its config.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from optistack.engines.guest import GuestError, run_inside
from optistack.engines.probe import broken_environment
from optistack.facts.model import ModelFacts
from optistack.facts.node import MIB, NodeFacts
from optistack.launch import Launch
from optistack.plan.plan import Plan
from optistack.preflight import Preflight, ResolvedChange, Verdict
from optistack.verify.receipt import Status
from optistack.verify.verify import compare_settings
from optistack_adapters.sglang.server_info import read_server_info
from optistack_adapters.sglang.versions import SUPPORTED

SCRIPT = Path(__file__).parent / "inside" / "preflight"
TIMEOUT_S = 300.0
PORT = 30000

CHECKPOINTS = ("--model-path", "--speculative-draft-model-path", "--tokenizer-path")
"""Flags whose value may be a hub id that is not on this machine; the config that was planned from stands in."""

SAME = ({"bf16", "bfloat16"}, {"fp16", "float16", "half"}, {None, "unquant"}, {"nsa", "dsa"})
"""Words that SGLang takes for each other."""

CHOSEN_WHILE_LOADING: Mapping[str, Callable[[ModelFacts], bool]] = {
    "kv_cache_dtype": lambda model: True,
    "attention_backend": lambda model: True,
    "moe_runner_backend": lambda model: model.moe is not None,
    "fp4_gemm_runner_backend": lambda model: model.quantization is not None,
    "fp8_gemm_runner_backend": lambda model: model.quantization is not None,
}
"""Fields that may stay ``auto`` in the resolution, and the models that they mean something for."""

_FIELD = re.compile(r"/server_info (\w+)=")


def preflight(plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight:
    """SGLang's verdict on the first launch of ``plan``. Raises InputError when its environment is broken."""
    against = f"sglang {plan.engine.version} in {python}"
    gpu = plan.share.gpu
    try:
        said = _ask(plan, python, env)
    except GuestError as error:
        if error.module and str(python) != plan.engine.python:
            # An SGLang for another device, asked in place of the plan's: what it lacks says nothing about the plan.
            why = f"its resolution needs the module {error.module!r}, which is not in {python}"
            return Preflight(verdict=Verdict.NOT_RUN, message=why, against=against)
        raise broken_environment(python, "sglang", error, SUPPORTED) from error
    wrong = said["error"]
    return Preflight(
        verdict=Verdict.REJECTED if wrong else Verdict.ACCEPTED,
        message=_words(wrong) if wrong else "",
        changes=() if wrong else tuple(changes(plan, said)),
        unresolved=() if wrong else tuple(unresolved(plan, said)),
        against=against,
        gpu_faked=gpu.name if gpu else "",
    )


COUNTED_OTHERWISE = ("--chunked-prefill-size",)
"""Flags that count otherwise than the setting they carry: tokens of all attention groups, and of one when resolved."""


def changes(plan: Plan, said: Mapping[str, Any]) -> Iterator[ResolvedChange]:
    """What SGLang would change: first what the launch says, then what the plan promises without saying it."""
    launch, resolved, sources = plan.launches[0], said["resolved"], said["sources"]
    results = tuple(compare_settings(plan, read_server_info(dict(resolved))))
    kept = {result.id for result in results if result.status is Status.PASS}
    told = set()
    for flag, name in said["given"].items():
        asked, becomes = said["asked"].get(name), resolved.get(name)
        if name not in resolved or same(asked, becomes):
            continue
        setting = next((argument.setting for argument in launch.arguments if argument.flag == flag), "")
        if flag in COUNTED_OTHERWISE and setting in kept:
            continue
        told.add(setting)
        yield ResolvedChange(
            flag=flag, setting=setting, asked=_word(asked), becomes=_word(becomes), source=sources.get(name, "")
        )
    for result in results:
        if result.status is Status.FAIL and result.id not in told:
            found = _FIELD.search(result.proof)
            yield ResolvedChange(
                setting=result.id,
                asked=result.asked,
                becomes=result.engine_says,
                source=sources.get(found[1], "") if found else "",
            )


def unresolved(plan: Plan, said: Mapping[str, Any]) -> Iterator[str]:
    """What only a start decides."""
    for name, concerns in CHOSEN_WHILE_LOADING.items():
        if said["resolved"].get(name) == "auto" and concerns(plan.model):
            yield f"{name} stays auto: chosen while the model is loaded"
    yield "max_total_num_tokens: from the memory that is free once the weights are loaded"
    if plan.node.gpu is not None:
        yield "whether the kernels of the chosen backends load and take these shapes"
    if plan.launches[0].has("--enable-hierarchical-cache"):
        yield "the host tier's pools: from the host RAM that is free at the start"
    if plan.model.evidence == "config":
        yield "what SGLang reads from the checkpoint's tensors and tokenizer, which are not here"
    yield from said["unresolved"]


def same(asked: Any, becomes: Any) -> bool:
    """Whether two values of a field are one to SGLang."""
    if asked == becomes:
        return True
    try:
        return any(asked in words and becomes in words for words in SAME)
    except TypeError:  # a list or an object
        return False


def _ask(plan: Plan, python: Path, env: Mapping[str, str]) -> dict[str, Any]:
    launch = plan.launches[0]
    with tempfile.TemporaryDirectory(prefix="optistack-") as name:
        folder = Path(name)
        for file in launch.files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content, encoding="utf-8")
        words = launch.argv("python", port=PORT, folder=name)[1 + len(launch.command) :]
        stand_ins = dict(_stand_ins(plan, launch, folder))
        arguments = {"argv": [stand_ins.get(word, word) for word in words], "gpu": _gpu(plan.share)}
        # Variables of the launch may decide too; no GPU may be seen, let alone touched.
        variables = {**env, **launch.env(port=PORT, folder=name), "CUDA_VISIBLE_DEVICES": ""}
        answer = run_inside(python, str(SCRIPT), arguments, env=variables, timeout_s=TIMEOUT_S)
    text = json.dumps(answer)
    for reference, folder_name in stand_ins.items():
        text = text.replace(json.dumps(folder_name)[1:-1], json.dumps(reference)[1:-1])
    found: dict[str, Any] = json.loads(text)
    return found


def _stand_ins(plan: Plan, launch: Launch, folder: Path) -> Iterator[tuple[str, str]]:
    """For each checkpoint that is not here, a folder with the config that was planned from."""
    for index, flag in enumerate(CHECKPOINTS):
        reference = launch.value_of(flag)
        if not reference or Path(reference).is_dir():
            continue
        if reference == plan.spec.model.checkpoint:
            source, content = plan.model.config_file, json.dumps(plan.model.config)
        elif reference in plan.checkpoints:
            source, content = plan.checkpoints[reference], ""
        else:
            continue
        made = folder / f"checkpoint-{index}"
        if source.is_file():
            # Beside config.json may lie what it refers to: quantization metadata, code.
            beside = [file for file in source.parent.iterdir() if file.suffix in {".json", ".py"}]
            made.mkdir()
            for file in beside:
                shutil.copy(file, made / file.name)
            shutil.copy(source, made / "config.json")
        elif content:
            made.mkdir()
            (made / "config.json").write_text(content, encoding="utf-8")
        else:
            continue
        yield reference, str(made)


def _gpu(share: NodeFacts) -> dict[str, Any] | None:
    if share.gpu is None:
        return None
    return {
        "name": share.gpu.name,
        "sm": share.gpu.sm,
        "memory_mib": share.gpu.hbm_bytes // MIB,
        "count": max(1, share.gpus),
    }


def _words(wrong: Mapping[str, str]) -> str:
    return " ".join(wrong["message"].split()) or wrong["type"]


def _word(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value)
