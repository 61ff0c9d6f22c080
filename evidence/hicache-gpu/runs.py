"""The runs of cache tiers that need a GPU, grouped by engine start: an engine takes 75 to 160 s to come up.

python evidence/hicache-gpu/runs.py list
python evidence/hicache-gpu/runs.py plan OUT                    # every stack planned, no engine and no GPU needed
python evidence/hicache-gpu/runs.py run OUT --sglang PYTHON --vllm PYTHON [--only NAME ...]

MODELS holds smollm2 (optistack model fetch smollm2-135m) and kimi-slice (config.json of a DeepSeek-V3 model at Kimi
K2's widths, 20 layers of 32 experts, with any tokenizer). KV is a folder on the disk that storage tiers may use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
POOL = {"sglang": ("--max-total-tokens", "260000"), "vllm": ("--num-gpu-blocks-override", "4062")}
"""Device KV of about 260,000 tokens (2.6 prompts of 100k): small, so that the working set exceeds it."""

DUMMY = ("--load-format", "dummy")


@dataclass(frozen=True)
class Start:
    """One engine, started once. ``checks`` are run in this order; ``after``: whose L3 folder it reads."""

    name: str
    backend: str
    model: str
    hicache: dict[str, Any] | None
    checks: tuple[str, ...]
    fp8: bool = False
    dflash: bool = False
    roomy: bool = False
    after: str = ""
    args: tuple[str, ...] = field(default=())

    def stack(self) -> dict[str, Any]:
        plugins: dict[str, Any] = {"routing": None}
        if self.fp8:
            plugins["kv-fp8"] = None
        if self.hicache is not None:
            plugins["hicache"] = self.hicache
        if self.dflash:
            plugins["dflash"] = {"draft": "${MODELS}/smollm2-dflash"}
        slice_ = self.model == "kimi-slice"
        pool = () if self.roomy else POOL[self.backend]
        if not slice_ and not self.roomy:
            pool = (pool[0], "20032" if self.backend == "sglang" else "1252")
        return {
            "name": self.name,
            "model": {"checkpoint": "${MODELS}/" + self.model, "served_name": self.model},
            "node": "h200x1",
            "backend": self.backend,
            "workload": {"input_tokens": 100_000 if slice_ else 4000, "output_tokens": 500, "concurrency": 5},
            "serving": {"context_tokens": 110_000 if slice_ else 8192, "dev_endpoints": True, "ready_timeout_s": 400},
            "plugins": plugins,
            "engine_args": [*(DUMMY if slice_ else ()), *pool, *self.args],
        }


FILE = {"storage": "file", "storage_dir": "${KV}", "storage_quota_gib": 100}
VFILE = {"storage": "file", "storage_dir": "${KV}"}
PROOF = ("receipt", "sizes")
EFFECT = ("load 1 2 4 8 16 32", "turn 1k 4k 16k 64k 100k")

STARTS = (
    # The effect and the cost, on the slice: none, L2, L2 and L3; and where everything fits.
    *(
        start
        for backend, files in (("sglang", FILE), ("vllm", VFILE))
        for start in (
            Start(f"{backend}-slice-none", backend, "kimi-slice", None, EFFECT, fp8=True),
            Start(f"{backend}-slice-l2", backend, "kimi-slice", {"host_gib": 40}, (*PROOF, *EFFECT), fp8=True),
            Start(f"{backend}-slice-l3", backend, "kimi-slice", {"host_gib": 12, **files}, (*PROOF, *EFFECT), fp8=True),
            Start(f"{backend}-slice-roomy-none", backend, "kimi-slice", None, ("load 1 4 8",), fp8=True, roomy=True),
            Start(
                f"{backend}-slice-roomy-l2",
                backend,
                "kimi-slice",
                {"host_gib": 80},
                ("load 1 4 8",),
                fp8=True,
                roomy=True,
            ),
        )
    ),
    # Correctness, on SmolLM2: conformance tier 1 with BF16 and FP8, then a restart, then two engines on one folder.
    *(
        start
        for backend, files in (("sglang", FILE), ("vllm", VFILE))
        for fp8 in (False, True)
        for start in (
            Start(
                f"{backend}-{'fp8' if fp8 else 'bf16'}-l3",
                backend,
                "smollm2",
                {"host_gib": 4, **files},
                (*PROOF, "conformance", "hits-by-tier"),
                fp8=fp8,
            ),
            Start(
                f"{backend}-{'fp8' if fp8 else 'bf16'}-l3-again",
                backend,
                "smollm2",
                {"host_gib": 4, **files},
                ("hits-by-tier",),
                fp8=fp8,
                after=f"{backend}-{'fp8' if fp8 else 'bf16'}-l3",
            ),
        )
    ),
    *(
        Start(f"{backend}-dflash-l2", backend, "smollm2", {"host_gib": 4}, (*PROOF, "conformance"), dflash=True)
        for backend in ("sglang", "vllm")
    ),
    # SGLang's write policies, layouts and io backends.
    *(
        Start(
            f"sglang-{policy.replace('_', '-')}-{layout.replace('_', '-')}-{io}",
            "sglang",
            "smollm2",
            {"host_gib": 4, "write_policy": policy, "layout": layout, "io_backend": io},
            (*PROOF, "conformance"),
        )
        for policy, layout, io in (
            ("write_back", "page_first", "kernel"),
            ("write_through_selective", "layer_first", "kernel"),
            ("write_through", "page_first_direct", "direct"),
            ("write_through", "layer_first", "direct"),
        )
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "plan", "run"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--sglang", help="Python of the engine")
    parser.add_argument("--vllm", help="Python of the engine")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    starts = [start for start in STARTS if not given.only or start.name in given.only]
    if given.what == "list":
        for start in starts:
            print(f"{start.name:50} {'; '.join(start.checks)}")
        minutes = len(starts) * 2
        print(
            f"{len(starts)} starts, {sum(len(one.checks) for one in starts)} checks; starts alone: about {minutes} min"
        )
        return
    if given.out is None:
        parser.error("OUT is missing")
    given.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for start in starts:
        file = given.out / f"{start.name}.yaml"
        file.write_text(os.path.expandvars(yaml.safe_dump(start.stack(), sort_keys=False)))
        python = getattr(given, start.backend)
        done = _plan(file) if given.what == "plan" else _run(start, file, given.out, python)
        print(f"{start.name:50} {'ok' if done == 0 else f'exit code {done}'}", flush=True)
        failed += [start.name] if done else []
    sys.exit(f"{len(failed)} failed: {', '.join(failed)}" if failed else 0)


def _plan(file: Path) -> int:
    done = subprocess.run(["optistack", "plan", "--stack", str(file), "--json"], capture_output=True, text=True)
    (file.with_suffix(".plan.json")).write_text(done.stdout or done.stderr)
    return done.returncode


def _run(start: Start, file: Path, out: Path, python: str) -> int:
    """Start it, do its checks, take it down; each check's output lies in OUT, and one that fails stops no other."""
    engine = ["--stack", str(file), "--engine-python", python]
    code = _keep(
        ["optistack", "apply", *engine, "--set", "node=detect", "--keep", "--json"], out / f"{start.name}.apply.json"
    )
    try:
        state = subprocess.run(
            ["optistack", "status", start.name, "--json"], capture_output=True, text=True, check=True
        )
        url = json.loads(state.stdout)["deployments"][0]["endpoints"][0]
        for check in start.checks:
            if check == "receipt":
                continue  # apply's own
            words = [
                sys.executable,
                str(HERE / "checks.py"),
                url,
                start.backend,
                start.model,
                str(file),
                *check.split(),
            ]
            code = _keep(words, out / f"{start.name}.{check.split()[0]}.json") or code
    finally:
        subprocess.run(["optistack", "down", start.name], check=False)
    return code


def _keep(words: list[str], file: Path) -> int:
    with file.open("w") as out:
        return subprocess.run(words, stdout=out, check=False).returncode


if __name__ == "__main__":
    main()
