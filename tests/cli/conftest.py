"""The command line in this process: its exit code and what it prints; and a small engine to apply stacks to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from optistack import hookimpl
from optistack.apply.deployment import list_deployments, stop
from optistack.backend import RenderRequest
from optistack.cli.run import run
from optistack.context import EngineFacts
from optistack.launch import Launch, LaunchArgument
from optistack.memory import EngineReserves
from optistack.plan.engine import Engine
from optistack.plan.plan import Plan
from optistack.plugin import Domain, PluginInfo
from optistack.preflight import Preflight
from optistack.rules import Rule, Severity
from optistack.settings import KVLayout, choose
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Observed

ENGINE = Path(__file__).parent / "small_engine.py"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Optistack = Callable[..., Ran]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine's own state, engines and stack files is seen or touched."""
    folder = tmp_path / "home"
    (folder / "here").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    for variable in ("OPTISTACK_DISABLE_PLUGINS", "FORCE_COLOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(folder / "here")
    return folder / "here"


@pytest.fixture
def optistack(capsys: pytest.CaptureFixture[str]) -> Optistack:
    def invoke(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return invoke


@dataclass
class Entry:
    """As much of an entry point as the host looks at."""

    name: str
    value: str
    loads: Any
    dist: Any = None

    def load(self) -> Any:
        if isinstance(self.loads, Exception):
            raise self.loads
        return self.loads


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs plugins beside the real ones: ``install(name=module)``; an exception is what its import raises."""

    def install(**plugins: Any) -> None:
        made = [Entry(name.replace("_", "-"), f"test:{name}", loads) for name, loads in plugins.items()]
        monkeypatch.setattr("optistack.host.entry_points", lambda group: [*entry_points(group=group), *made])

    return install


class SmallBackend:
    """The adapter of the small engine.

    ``claims`` is the KV dtype that it is started with instead of the plan's, ``answer`` what its preflight says; a
    ``slow`` one fires a degraded rule.
    """

    name = "small"
    distributions = ("small",)
    supported = ">=1"
    default_version = "1.0"
    snapshots: Path | None = None
    claims = ""
    fails = ""
    dies = ""
    slow = False
    answer: Preflight | None = None

    def facts(self, version: str, device: str) -> EngineFacts:
        return EngineFacts(backend=self.name, version=version, device=device)

    def defaults(self, *_: object) -> Sequence[Any]:
        return ()

    def reserves(self, *_: object) -> EngineReserves:
        return EngineReserves()

    def render(self, request: RenderRequest) -> Launch:
        dtype = self.claims or str(request.stack.kv.dtype.value)
        arguments = [
            LaunchArgument(flag="--kv-dtype", value=dtype, source="small", setting="kv.dtype"),
            LaunchArgument(flag="--port", value="{port}", source="plan"),
        ]
        for one in request.stack.arguments:
            arguments.append(LaunchArgument(flag=one.name, value=one.value, source=one.source))
        if self.fails:
            arguments.append(LaunchArgument(flag="--fail", value=self.fails, source="small"))
        if self.dies:
            arguments.append(LaunchArgument(flag="--die", value=self.dies, source="small"))
        return Launch(
            backend=self.name,
            version="1.0",
            replica=request.replica,
            command=("-IS", str(ENGINE)),
            arguments=tuple(arguments),
        )

    def rules(self) -> Sequence[Rule]:
        message = "The small engine cannot do {detail}."
        return (
            Rule(
                id="small-no-fp4",
                severity=Severity.ERROR,
                message=message,
                fires=_wants_fp4,
                fix="Use FP8.",
                domain=Domain.KV,
            ),
            Rule(
                id="small-slow",
                severity=Severity.DEGRADED,
                message="The small engine is slow.",
                fires=lambda context: self.slow,
            ),
        )

    def preflight(self, plan: Plan, python: Path, env: Mapping[str, str]) -> Preflight | None:
        return self.answer

    def observe(self, endpoint: Endpoint, log: str | None) -> Mapping[str, Observed]:
        body = endpoint.get_json("/claims") or {}
        return {
            "kv.dtype": Observed(value=body.get("kv_dtype"), proof="/claims kv_dtype"),
            "engine.version": Observed(value=body.get("version"), proof="/claims version"),
        }


def _wants_fp4(context: Any) -> str | None:
    return "fp4" if context.stack.kv.dtype.value == "nvfp4" else None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, install: Callable[..., None], home: Path) -> Iterator[SmallBackend]:
    """The small engine and a plugin that asks it for FP8 KV, installed, with ``optistack.yaml`` for them.

    What is left running when the test ends is stopped.
    """
    backend = SmallBackend()
    real = entry_points(group="optistack.backends")
    entry = Entry("small", "test:small", backend)
    monkeypatch.setattr("optistack.backend.entry_points", lambda group: [*real, entry])
    here = EngineFacts(backend="small", version="1.0", device="cpu", installed=True, python=sys.executable)
    for place in ("optistack.plan.build", "optistack.cli.ready"):
        monkeypatch.setattr(f"{place}.find_engine", lambda *_, **__: Engine(here, None, {"FROM_THE_ENGINE": "1"}))
    install(eight=eight_bits())
    write_model(home / "model")
    (home / "optistack.yaml").write_text(STACK)
    yield backend
    for deployment in list_deployments():
        stop(deployment)


STACK = """\
name: tiny
model: {checkpoint: ./model}
node: cpu
backend: small
workload: {input_tokens: 64, output_tokens: 16}
serving: {kv_memory_gib: 0.1, ready_timeout_s: 60}
plugins:
  eight:
"""


class EightOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dtype: str = "fp8_e4m3"


def eight_bits() -> ModuleType:
    """A plugin that wants KV in the dtype of its option."""
    module = ModuleType("eight")

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name="eight", domain=Domain.KV, version="1.0", summary="Small KV.", options=EightOptions)

    @hookimpl
    def optistack_lay_out_kv(ctx: Any) -> KVLayout:
        return KVLayout(dtype=choose(ctx.options.dtype, why="it is small", reference="example.org"))

    vars(module).update(optistack_plugin=optistack_plugin, optistack_lay_out_kv=optistack_lay_out_kv)
    return module


def write_model(folder: Path) -> None:
    """A Llama-like checkpoint whose weights are a file that nobody opens."""
    folder.mkdir()
    (folder / "pytorch_model.bin").touch()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def shell() -> SimpleNamespace:
    """How the program is run in a process of its own."""
    return SimpleNamespace(argv=[sys.executable, "-m", "optistack.cli"], env=dict(os.environ))
