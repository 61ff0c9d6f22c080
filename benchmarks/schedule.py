"""Which of many configurations begins next on the GPUs of one host, and when each would be measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A configuration of a list, by its ``name``, which is one among all lists.

    ``gpu_gib`` is what its engine takes of each of its ``gpus`` GPUs. It begins when those named in ``after`` have
    ended. ``start_s`` and ``measure_s`` are about what its start, and everything after that, take: for
    :func:`simulate` alone.
    """

    list: str
    name: str
    gpu_gib: float
    gpus: int = 1
    after: Sequence[str] = ()
    start_s: float = 100.0
    measure_s: float = 60.0


NEVER = float("inf")


@dataclass
class Run:
    """A job on its GPUs. Seconds since the first began; ``measured_s`` is when it had its GPUs to itself."""

    job: Job
    gpus: tuple[int, ...]
    began_s: float
    measured_s: float = NEVER
    ended_s: float = NEVER

    @property
    def up_s(self) -> float:
        return self.began_s + self.job.start_s


def possible(jobs: Sequence[Job], gpus: int, gpu_gib: float) -> list[Job]:
    """Those that can run on so many GPUs of so much room, and whose ``after`` can."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.gpus <= gpus and job.gpu_gib <= gpu_gib and all(name in found for name in job.after):
            found[job.name] = job
    return list(found.values())


def to_begin(waiting: Sequence[Job], ended: Collection[str], free_gib: Mapping[int, float]) -> list[Run]:
    """What begins now. ``waiting`` has the most wanted first, ``free_gib`` is by GPU.

    A job goes where it leaves least room, so that small engines share a GPU and large ones find one. Where it does not
    fit yet it keeps those GPUs that have most, and what comes after it may begin on the others alone: or small ones
    would keep it waiting for ever.
    """
    free, begun = dict(free_gib), list[Run]()
    for job in waiting:
        if not set(job.after) <= set(ended):
            continue
        roomiest = sorted(free, key=lambda gpu: (-free[gpu], gpu))
        fitting = sorted((gpu for gpu in free if free[gpu] >= job.gpu_gib), key=lambda gpu: (free[gpu], gpu))
        if len(fitting) >= job.gpus:
            begun.append(Run(job, tuple(sorted(fitting[: job.gpus])), 0.0))
            for gpu in fitting[: job.gpus]:
                free[gpu] -= job.gpu_gib
        else:
            for gpu in roomiest[: job.gpus]:
                del free[gpu]
    return begun


def free_gib(running: Sequence[Run], gpus: int, gpu_gib: float) -> dict[int, float]:
    """Room by GPU beside what is ``running``."""
    return {gpu: gpu_gib - sum(run.job.gpu_gib for run in running if gpu in run.gpus) for gpu in range(gpus)}


def simulate(jobs: Sequence[Job], gpus: int, gpu_gib: float) -> list[Run]:
    """The runs of all ``jobs``, in the order of their ends, if each took the times it names and one at a time were
    measured on a GPU, the first that is up first. Raises ValueError where a job could never begin."""
    waiting, running, ended = list(jobs), list[Run](), list[Run]()
    measured_until = dict.fromkeys(range(gpus), 0.0)
    now = 0.0
    while waiting or running:
        for run in to_begin(waiting, {run.job.name for run in ended}, free_gib(running, gpus, gpu_gib)):
            waiting.remove(run.job)
            running.append(Run(run.job, run.gpus, now))
        if not running:
            raise ValueError(f"{waiting[0].name} could never begin")
        unmeasured = [run for run in running if run.measured_s == NEVER]
        for run in sorted(unmeasured, key=lambda run: run.up_s):
            if run.up_s <= now and all(measured_until[gpu] <= now for gpu in run.gpus):
                run.measured_s, run.ended_s = now, now + run.job.measure_s
                measured_until |= dict.fromkeys(run.gpus, run.ended_s)
        # Either somebody is measured, or somebody is not up yet: there is always a next moment.
        now = min(at for run in running for at in (run.up_s, run.ended_s) if at > now)
        ended += sorted((run for run in running if run.ended_s <= now), key=lambda run: run.ended_s)
        running = [run for run in running if run.ended_s > now]
    return ended
