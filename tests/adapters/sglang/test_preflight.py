"""What SGLang's own resolution makes of a launch: with a small SGLang that is a real package, and with the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optistack.engines.environment import EngineEnvironment
from optistack.errors import InputError
from optistack.host import Host
from optistack.plan.build import build_plan
from optistack.plan.plan import Plan
from optistack.preflight import Preflight, Verdict, explained
from optistack.stack.loader import load_stack
from optistack_adapters.sglang import backend
from optistack_adapters.sglang.preflight import same

STACKS = Path(__file__).parents[3] / "stacks"

SERVER_ARGS = """
import argparse, logging
from sglang.srt.utils.common import get_device, get_device_memory_capacity

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path")
        parser.add_argument("--device")
        parser.add_argument("--page-size", type=int)
        parser.add_argument("--kv-cache-dtype")
        parser.add_argument("--speculative-draft-model-quantization")
        parser.add_argument("--chunked-prefill-size", type=int)
        parser.add_argument("--attention-backend", choices=["trtllm_mla", "torch_native"])
        {others}

    def __init__(self, parsed):
        self.__dict__.update(vars(parsed))
        {made}

    def resolve(self):
        self._resolved_overrides = [("_whole_gpu", {{"chunked_prefill_size": int(get_device_memory_capacity())}})]
        self.device = self.device or get_device()
        self.speculative_draft_model_quantization = None
        self.chunked_prefill_size = int(get_device_memory_capacity())
        if self.kv_cache_dtype == "nvfp4":
            raise ValueError(f"{{self.model_path}}: no NVFP4 KV\\n on this backend")

    def check_server_args(self):
        logging.getLogger("sglang.x").warning("a word of warning")

    {later}

def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return ServerArgs(parser.parse_args(argv))
"""

LATER = """
    def resolve_once(self):
        from sglang.srt.runtime_context import get_platform
        assert get_platform()["is_sm100"] and not get_platform()["is_sm90"], get_platform()
        self.resolve()

    def resolved_dict(self):
        return dict(vars(self))
"""

CONTEXT = """
_PLATFORM_PROBES = {"is_sm100": "", "is_sm90": ""}
_FACTS = {}

def get_platform():
    return _FACTS

class override_platform:
    def __init__(self, **facts): self.facts = facts
    def __enter__(self): _FACTS.update(self.facts)
    def __exit__(self, *_): _FACTS.clear()
"""

COMMON = """
def get_device_memory_capacity(device=None): raise RuntimeError("nvidia-smi was asked")
def get_device(): raise RuntimeError("No accelerator")
"""

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePlan]:
    """``planned(stack, flag=value)``: a ready stack's plan, made without engines, with other values in its launch."""
    with pytest.MonkeyPatch.context() as patch:
        empty = str(tmp_path_factory.mktemp("empty"))
        patch.setenv("XDG_CACHE_HOME", empty)
        patch.setenv("HF_HOME", empty)
        host = Host.from_environment()
        plans = {
            name: build_plan(load_stack(STACKS / f"{name}.yaml", host), host, backend)
            for name in ("kimi-k2.6-b200x4", "kimi-k2.6-b300x4")
        }

    def make(name: str = "kimi-k2.6-b200x4", **values: str) -> Plan:
        plan = plans[name]
        flags = {f"--{flag.replace('_', '-')}": value for flag, value in values.items()}
        arguments = tuple(
            argument.model_copy(update={"value": flags.get(argument.flag, argument.value)})
            for argument in plan.launches[0].arguments
        )
        return plan.model_copy(update={"launches": (plan.launches[0].model_copy(update={"arguments": arguments}),)})

    yield make


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(params=["0.5.19 and later", "before 0.5.19"])
def small(request: pytest.FixtureRequest, tmp_path: Path, planned: MakePlan) -> dict[str, str]:
    """The variables with which this Python has a small SGLang and no torch to speak of."""
    new = request.param == "0.5.19 and later"
    known = {"--model-path", "--device", "--page-size", "--kv-cache-dtype", "--attention-backend"}
    known |= {"--speculative-draft-model-quantization", "--chunked-prefill-size"}
    others = [
        f'parser.add_argument("{a.flag}"' + (', action="store_true")' if a.value is None else ")")
        for a in planned().launches[0].arguments
        if a.flag not in known
    ]
    text = SERVER_ARGS.format(
        others="\n        ".join(others), made="" if new else "self.resolve()", later=LATER.strip() if new else ""
    )
    write(
        tmp_path,
        {
            "torch/__init__.py": "class cuda: pass\n",
            "sglang/__init__.py": "",
            "sglang/srt/__init__.py": "",
            "sglang/srt/server_args.py": text,
            "sglang/srt/runtime_context.py": CONTEXT if new else "",
            "sglang/srt/configs/__init__.py": "",
            "sglang/srt/configs/model_config.py": "",
            "sglang/srt/utils/__init__.py": "",
            "sglang/srt/utils/common.py": COMMON,
        },
    )
    return {"PYTHONPATH": str(tmp_path)}


def ask(plan: Plan, env: dict[str, str]) -> Preflight:
    answer = backend.preflight(plan, Path(sys.executable), env)
    assert answer is not None
    return answer


def test_what_the_resolution_changes_is_told_with_its_source(planned: MakePlan, small: dict[str, str]) -> None:
    answer = ask(planned(), small)
    assert (answer.verdict, answer.gpu_faked) == (Verdict.ACCEPTED, "NVIDIA B200")
    assert [(c.flag, c.setting, c.asked, c.becomes, c.source) for c in answer.changes] == [
        # The memory of the plan's GPU in MiB, which nothing on this machine could have said.
        ("--chunked-prefill-size", "serving.chunked_prefill_tokens", "16384", "183359", "_whole_gpu")
    ]
    assert any("max_total_num_tokens" in text for text in answer.unresolved)


def test_a_rejection_is_in_the_engines_words_and_names_the_users_checkpoint(
    planned: MakePlan, small: dict[str, str]
) -> None:
    answer = ask(planned(kv_cache_dtype="nvfp4"), small)
    assert answer.verdict is Verdict.REJECTED
    assert answer.message == "nvidia/Kimi-K2.6-NVFP4: no NVFP4 KV on this backend"


def test_what_the_parser_refuses_is_a_rejection(planned: MakePlan, small: dict[str, str]) -> None:
    answer = ask(planned(attention_backend="fa9"), small)
    assert answer.verdict is Verdict.REJECTED
    assert "argument --attention-backend: invalid choice: 'fa9'" in answer.message


def broken(folder: Path, module: str, text: str) -> dict[str, str]:
    write(folder, {f"{module}/__init__.py": text})
    return {"PYTHONPATH": str(folder)}


def test_a_module_that_is_missing_is_named_with_the_mend(
    planned: MakePlan, small: dict[str, str], tmp_path: Path
) -> None:
    plan = planned()
    env = broken(tmp_path, "sglang", "import msgspec_is_not_here\n")
    engine = plan.engine.model_copy(update={"python": sys.executable})
    with pytest.raises(InputError, match="for want of the module 'msgspec_is_not_here'") as caught:
        ask(plan.model_copy(update={"engine": engine}), env)
    assert caught.value.fix.endswith(f"{sys.executable} -m pip install msgspec_is_not_here")
    # An SGLang that only stands in for the plan's says nothing about the plan by what it lacks.
    assert ask(plan, env).verdict is Verdict.NOT_RUN


def test_another_torch_is_named_with_the_mend(planned: MakePlan, small: dict[str, str], tmp_path: Path) -> None:
    env = broken(tmp_path, "sglang", "raise RuntimeError('operator torchvision::nms does not exist')\n")
    with pytest.raises(InputError, match="its torchvision is built for another torch") as caught:
        ask(planned(), env)
    assert "pip uninstall torchvision" in caught.value.fix


def test_words_that_are_one_to_sglang_are_no_change() -> None:
    assert same("bf16", "bfloat16") and same("unquant", None) and same([1], [1])
    assert not same("bf16", "fp8_e4m3") and not same([1], [2]) and not same(True, None)


def ask_real(plan: Plan, sglang_cpu: EngineEnvironment) -> Preflight:
    answer = backend.preflight(plan, sglang_cpu.python, sglang_cpu.env)
    assert answer is not None
    return explained(answer, plan.findings)


@pytest.mark.engine
@pytest.mark.parametrize(("stack", "gpu"), [("kimi-k2.6-b200x4", "NVIDIA B200"), ("kimi-k2.6-b300x4", "NVIDIA B300")])
def test_the_golden_launches_resolve_as_planned(
    planned: MakePlan, sglang_cpu: EngineEnvironment, stack: str, gpu: str
) -> None:
    answer = ask_real(planned(stack), sglang_cpu)
    assert (answer.verdict, answer.message, answer.changes) == (Verdict.ACCEPTED, "", ())
    assert answer.gpu_faked.startswith(gpu)


@pytest.mark.engine
def test_a_page_size_that_the_kernels_do_not_take_is_told(planned: MakePlan, sglang_cpu: EngineEnvironment) -> None:
    answer = ask_real(planned(page_size="16"), sglang_cpu)
    assert [(c.flag, c.asked, c.becomes, c.source) for c in answer.changes] == [
        ("--page-size", "16", "64", "_mla_backend_page_constraints")
    ]


@pytest.mark.engine
def test_kv_that_no_mla_kernel_reads_is_rejected(planned: MakePlan, sglang_cpu: EngineEnvironment) -> None:
    answer = ask_real(planned(kv_cache_dtype="nvfp4"), sglang_cpu)
    assert answer.verdict is Verdict.REJECTED
    assert "backend 'trtllm_mla' provides neither" in answer.message
