"""Run a plan: files read and written in parallel, each finished one kept, progress told. Needs torch."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch

from optistack_quant_nvfp4.convert.job import Job
from optistack_quant_nvfp4.convert.plan import FilePlan, Plan, Step
from optistack_quant_nvfp4.convert.tensor_file import Reader
from optistack_quant_nvfp4.convert.write import Writer

MOST_WORKERS = 32
"""Each works on some 30 MB, and all of them have to stay within 1 GiB."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h

Tell = Callable[[str], None]


def default_workers() -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def keep_freed_memory() -> None:
    """Have the C library, where it is glibc, keep what is freed for the next tensor of that size.

    Else it goes back to the system after each operation and comes again a page at a time, a third of a conversion's
    time. What is kept is what the threads need at once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_MMAP_THRESHOLD, 1 << 25)  # the most that it takes


@dataclass
class _Open:
    """A file that is being written."""

    file: FilePlan
    descriptor: int
    path: Path
    left: int
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Progress:
    """``done`` of ``total`` bytes of the source are read and converted; ``earlier`` of them by a run before."""

    total: int
    done: int = 0
    earlier: int = 0
    started: float = field(default_factory=time.monotonic)

    def text(self) -> str:
        """Percent, speed and the time that the rest takes at it."""
        took, here = time.monotonic() - self.started, self.done - self.earlier
        share = f"{100 * self.done / max(self.total, 1):.0f}% of {self.total / 2**30:.2f} GiB"
        if not here or took < 1:
            return share
        speed = here / took
        left_s = (self.total - self.done) / speed
        return f"{share}, {speed / 2**20:.0f} MiB/s, {_span(left_s)} left"


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    return f"{whole / 60:.0f} min" if whole < 5400 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Runner:
    """Writes what is left of ``plan`` into the folder of ``job``."""

    def __init__(self, plan: Plan, job: Job, device: torch.device, workers: int, tell: Tell) -> None:
        self._plan, self._job, self._device, self._workers, self._tell = plan, job, device, workers, tell
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._rows: list[dict[str, Any]] = []
        self._progress = Progress(sum(step.bytes_read for file in plan.files for step in file.steps))

    def run(self) -> list[dict[str, Any]]:
        """The rows of the report of every converted layer, those of finished files among them.

        The first error of a step ends the others and is raised. Arithmetic of one step has one thread, so that the
        threads go to different layers.
        """
        torch.set_num_threads(1)
        keep_freed_memory()
        left = self._left()
        self._progress.started = time.monotonic()
        with Reader(self._plan.checkpoint.files) as source, ThreadPoolExecutor(self._workers) as pool:
            writer = Writer(self._plan, source, self._device)
            futures: set[Future[None]] = {
                pool.submit(self._one, writer, file, step) for file, step in _spread(left, self._workers)
            }
            try:
                self._watch(futures)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                for one in self._open.values():
                    os.close(one.descriptor)
        return self._rows

    def _left(self) -> list[FilePlan]:
        left = []
        for file in self._plan.files:
            record = self._job.finished(file)
            if record is None:
                left.append(file)
            else:
                self._rows.extend(record["rows"])
                self._progress.done += sum(step.bytes_read for step in file.steps)
        self._progress.earlier = self._progress.done
        return left

    def _watch(self, futures: set[Future[None]]) -> None:
        while futures:
            done, futures = wait(futures, timeout=1.0, return_when=FIRST_EXCEPTION)
            for one in done:
                one.result()
            self._tell(self._progress.text())

    def _one(self, writer: Writer, file: FilePlan, step: Step) -> None:
        with self._lock:
            target = self._open.get(file.name)
            if target is None:
                target = _Open(file, *self._job.begin(file), left=len(file.steps))
                self._open[file.name] = target
        row = writer.write(step, file, target.descriptor, target.path)
        with self._lock:
            self._progress.done += step.bytes_read
            if row is not None:
                target.rows.append(row)
            target.left -= 1
            last = target.left == 0
            if last:
                del self._open[file.name]
                self._rows.extend(target.rows)
        if last:
            rows = sorted(target.rows, key=lambda row: str(row["layer"]))
            self._job.finish(file, target.descriptor, target.path, {"rows": rows})


def _spread(files: list[FilePlan], workers: int) -> Iterator[tuple[FilePlan, Step]]:
    """The steps of ``workers`` files at a time, in turn: so many files are read and written at once."""
    for first in range(0, len(files), workers):
        group = [[(file, step) for step in file.steps] for file in files[first : first + workers]]
        yield from (one for one in chain.from_iterable(zip_longest(*group)) if one is not None)
