"""How long the command line takes to answer: wall and CPU time, and as a multiple of Python's own start.

    python benchmarks/startup.py [--runs 15] [--check]

The wall limits hold on an idle core. On a busy machine look at the CPU time, which waiting does not count into, and at
the multiples, which the machine's speed cancels out of. ``--check`` exits with 1 when a wall limit is passed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KIMI = ROOT / "stacks" / "kimi-k2.6-b200x4.yaml"
OPTISTACK = (sys.executable, "-m", "optistack.cli")

COMMANDS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "python -c pass": ((sys.executable, "-c", "pass"), None),
    "optistack --version": ((*OPTISTACK, "--version"), None),
    "optistack --help": ((*OPTISTACK, "--help"), 0.25),
    "optistack plan (Kimi K2.6, SGLang)": ((*OPTISTACK, "plan", "--stack", str(KIMI), "--backend", "sglang"), 0.5),
    "optistack plan (Kimi K2.6, vLLM)": ((*OPTISTACK, "plan", "--stack", str(KIMI), "--backend", "vllm"), 0.5),
}
"""What is measured, and the most that it may take in seconds of wall time."""


def measure(command: tuple[str, ...], runs: int) -> tuple[float, float]:
    """Median seconds of wall and of CPU time. The first run fills the caches and does not count."""
    walls, cpus = [], []
    for index in range(runs + 1):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed: {done.stderr.decode().strip()}")
        if index:
            walls.append(wall)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="runs of each command")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is passed")
    arguments = parser.parse_args()
    print(f"Median of {arguments.runs} runs; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")
    print(f"{'':<36}{'wall':>9}{'CPU':>9}{'x pass':>9}{'limit':>9}")
    passed, base = True, None
    for name, (command, limit) in COMMANDS.items():
        wall, cpu = measure(command, arguments.runs)
        base = base or cpu
        passed = passed and (limit is None or wall <= limit)
        bound = "" if limit is None else f"{limit * 1000:.0f} ms"
        print(f"{name:<36}{wall * 1000:>6.0f} ms{cpu * 1000:>6.0f} ms{cpu / base:>9.1f}{bound:>9}")
    return 1 if arguments.check and not passed else 0


if __name__ == "__main__":
    sys.exit(main())
