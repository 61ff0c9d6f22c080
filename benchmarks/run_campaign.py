"""Run configurations of many lists on the GPUs of one host within a given time, the most wanted first.

    python benchmarks/run_campaign.py benchmarks/configurations/h200-campaign.yaml --out DIR --gpus 0,1 --seconds 1500
        [--engine-python BACKEND=PATH] [--simulate]

A campaign says what it is (`campaign`), what it `needs`, the `gpu_gib` that engines may take of a GPU together, and
`jobs`, the most wanted first: each names a `list` beside the campaign, a configuration of it, the `gpu_gib` that its
engine takes of each of its `gpus` (1), and, where wanted, those `after` whose end it begins, and the `start_s` and
`measure_s` that it took before. Engines start as memory allows while others are measured; on a GPU one is measured at a
time (`run_configurations.py --lock`), and while a `quiet` one is, none starts. A job that needs more GPUs than there
are is left out, and said. DIR/LIST gets what run_configurations.py writes, DIR/rows each job's row, NAME.json, and
output, NAME.log, and DIR campaign.json: by job its GPUs, when it began and ended, and its exit code. When the seconds
are over, or on SIGTERM or Ctrl-C, what runs is told to end, which keeps what was measured by then. Exit code 1 where a
job failed, was ended or was not begun. `--simulate` starts nothing and prints when each would be measured and end, were
none quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from schedule import Job, Run, free_gib, possible, simulate, to_begin

from optistack.apply.termination import termination_raises

RUNNER = Path(__file__).with_name("run_configurations.py")
POLL_S = 0.2
END_S = 60
"""What jobs that are told to end may take: their commands write what they have, their engines are taken down."""


@dataclass
class Running:
    run: Run
    process: subprocess.Popen[bytes]


class Campaign:
    def __init__(self, jobs: Sequence[Job], gpu_gib: float, gpus: Sequence[str], folder: Path, out: Path) -> None:
        self.waiting, self.gpu_gib, self.gpus, self.folder, self.out = list(jobs), gpu_gib, gpus, folder, out
        self.running: list[Running] = []
        self.ended: dict[str, dict[str, Any]] = {}
        self.zero = time.monotonic()

    def now(self) -> float:
        return round(time.monotonic() - self.zero, 1)

    def work(self, seconds: float, words: Sequence[str]) -> None:
        """Until everything has ended or ``seconds`` are over; ``words`` are for run_configurations.py."""
        while (self.waiting or self.running) and self.now() < seconds:
            free = free_gib([one.run for one in self.running], len(self.gpus), self.gpu_gib)
            for run in to_begin(self.waiting, self.ended, free):
                self.waiting.remove(run.job)
                self.begin(run, words)
            time.sleep(POLL_S)
            self.collect()

    def begin(self, run: Run, words: Sequence[str]) -> None:
        job, rows = run.job, self.out / "rows"
        folder = self.out / Path(job.list).stem
        run.began_s = self.now()
        locks = [word for gpu in run.gpus for word in ("--lock", str(self.out / f"gpu{self.gpus[gpu]}.lock"))]
        command = [sys.executable, str(RUNNER), str(self.folder / job.list), "--only", job.name, *locks, *words]
        command += ["--starting", str(self.out / "starting.lock")]
        command += ["--out", str(folder), "--rows", str(rows / f"{job.name}.json")]
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[gpu] for gpu in run.gpus)}
        with (rows / f"{job.name}.log").open("wb") as log:
            # Away from the terminal's Ctrl-C: a job that is told to end twice does not wait for what it has running.
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **visible}, start_new_session=True
            )
        self.running.append(Running(run, process))
        print(f"{run.began_s:7.1f} s  {job.name} begins on GPU {visible['CUDA_VISIBLE_DEVICES']}", flush=True)

    def collect(self) -> None:
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            run, code = one.run, one.process.returncode
            run.ended_s = self.now()
            gpus = [self.gpus[gpu] for gpu in run.gpus]
            self.ended[run.job.name] = {"gpus": gpus, "began_s": run.began_s, "ended_s": run.ended_s, "exit_code": code}
            self.write()
            print(f"{run.ended_s:7.1f} s  {run.job.name} ended with {code}", flush=True)

    def stop(self) -> None:
        """End what runs."""
        for one in self.running:
            one.process.terminate()
        end = time.monotonic() + END_S
        for one in self.running:
            try:
                one.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self.write()
        self.collect()

    def write(self) -> None:
        told = {"jobs": self.ended, "not_begun": [job.name for job in self.waiting]}
        (self.out / "campaign.json").write_text(json.dumps(told, indent=1) + "\n")


def read(file: Path) -> tuple[list[Job], float]:
    """The jobs of a campaign and the GiB of a GPU that they may take. Raises ValueError where it names a configuration
    that its list has not, or one that is to begin after something that does not come before it."""
    document = yaml.safe_load(file.read_text())
    jobs, lists = [Job(**job) for job in document["jobs"]], dict[str, set[str]]()
    before = set[str]()
    for job in jobs:
        if job.list not in lists:
            names = yaml.safe_load((file.parent / job.list).read_text())["configurations"]
            lists[job.list] = {one["name"] for one in names}
        if job.name not in lists[job.list]:
            raise ValueError(f"{job.list} has no configuration {job.name}")
        if job.name in before:
            raise ValueError(f"{job.name} is there twice")
        if late := sorted(set(job.after) - before):
            raise ValueError(f"{job.name} is to begin after {', '.join(late)}, which does not come before it")
        before.add(job.name)
    return jobs, float(document["gpu_gib"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", default="0", help="their indexes, as CUDA_VISIBLE_DEVICES names them")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--engine-python", action="append", default=[], metavar="BACKEND=PATH")
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args()
    gpus = given.gpus.split(",")
    try:
        jobs, gpu_gib = read(given.file)
    except ValueError as error:
        parser.error(str(error))
    fit = possible(jobs, len(gpus), gpu_gib)
    for job in jobs:
        if job not in fit:
            print(f"{job.name} is left out: it, or what it comes after, does not fit {len(gpus)} GPU", flush=True)
    if given.simulate:
        for run in simulate(fit, len(gpus), gpu_gib):
            where, late = ",".join(gpus[gpu] for gpu in run.gpus), run.ended_s > given.seconds
            print(f"{run.began_s:7.0f} s  {run.job.name} on {where}: measured from {run.measured_s:.0f} ", end="")
            print(f"to {run.ended_s:.0f}{', too late' if late else ''}")
        return 0
    (given.out / "rows").mkdir(parents=True, exist_ok=True)
    campaign = Campaign(fit, gpu_gib, gpus, given.file.parent, given.out)
    words = [word for one in given.engine_python for word in ("--engine-python", one)]
    with termination_raises():
        try:
            campaign.work(given.seconds, words)
        except KeyboardInterrupt:
            pass
        finally:
            campaign.stop()
    return int(bool(campaign.waiting) or any(one["exit_code"] for one in campaign.ended.values()))


if __name__ == "__main__":
    sys.exit(main())
