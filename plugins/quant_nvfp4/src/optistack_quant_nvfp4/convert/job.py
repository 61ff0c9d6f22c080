"""The folder that a conversion works in until it is whole: locked, resumable, and renamed at the end.

Beside the destination: ``.NAME.partial`` with ``job.json`` (what is converted, so that another conversion does not go
on with these files), ``done/`` (the measurements of each finished file) and ``checkpoint/``, which becomes the
destination. A file gets its name when its bytes are on the disk; what has no name is written again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack.files import write_whole
from optistack_quant_nvfp4.convert.plan import FilePlan, Plan
from optistack_quant_nvfp4.convert.results import RECIPE
from optistack_quant_nvfp4.convert.tensor_file import write_at

MARGIN_BYTES = 64 << 20
"""Left free on the disk."""

_AFTERWARDS = frozenset(("job.json", "lock", "done"))
"""What the working folder has when the checkpoint in it has become the destination."""


def working_folder(destination: Path) -> Path:
    """Where a conversion to ``destination`` works until it is whole."""
    there = destination.resolve()
    return there.parent / f".{there.name}.partial"


def left_behind(destination: Path, *, remove: bool = False) -> Path | None:
    """The working folder of a conversion that was killed between its last two steps: ``destination`` is whole, and the
    folder was still to be taken away, which ``remove`` does.

    None where there is none, a process still has it, or either folder does not show that a conversion made it.
    """
    folder = working_folder(destination)
    if folder.is_symlink() or not (folder / "job.json").is_file() or not (destination / RECIPE).is_file():
        return None
    if not {one.name for one in folder.iterdir()} <= _AFTERWARDS:
        return None
    descriptor = os.open(folder / "lock" if (folder / "lock").is_file() else folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    else:
        if remove:
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
    return folder


def check_destination(source: Path, destination: Path) -> None:
    """InputError when ``destination`` exists, or it and ``source`` are inside each other."""
    here, there = source.resolve(), destination.resolve()
    if there == here or there.is_relative_to(here):
        raise InputError(f"The destination {destination} is inside the source.", fix="Name a folder outside of it.")
    if here.is_relative_to(there):
        raise InputError(f"The source is inside the destination {destination}.", fix="Name another folder.")
    if destination.exists() or destination.is_symlink():
        raise InputError(f"{destination} exists.", fix="Name a folder that does not, or delete it.")
    if not there.parent.is_dir():
        raise InputError(f"There is no folder {there.parent} for {destination.name}.", fix="Create it first.")


class Job:
    """The working folder of one conversion to ``destination``."""

    def __init__(self, plan: Plan, destination: Path) -> None:
        self._plan = plan
        self.destination = destination.resolve()
        self.folder = working_folder(self.destination)
        self.checkpoint = self.folder / "checkpoint"
        self._done = self.folder / "done"

    def identity(self) -> dict[str, Any]:
        """What makes another run the same conversion: the source's files and what is made of them."""
        files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in self._plan.checkpoint.files]
        return {
            "source": self._plan.checkpoint.facts.fingerprint,
            "files": [list(file) for file in files],
            "result": self._plan.digest(),
        }

    def check_space(self, other_bytes: int) -> None:
        """InputError when the disk lacks room for what is still to be written."""
        finished = sum(file.size for file in self._plan.files if self.finished(file) is not None)
        needed = self._plan.tensor_bytes + other_bytes - finished + MARGIN_BYTES
        # What a run before had begun has its space already, and is written anew in it.
        begun = sum(part.stat().st_blocks * 512 for part in self.checkpoint.glob(".*.part"))
        free = shutil.disk_usage(self.destination.parent).free + begun
        if needed > free:
            raise InputError(
                f"{self.destination.parent} has {free / 2**30:.2f} GiB free and {needed / 2**30:.2f} GiB are needed.",
                fix="Free some space, or write elsewhere.",
            )

    @contextmanager
    def open(self, other_bytes: int) -> Iterator[None]:
        """Take the folder, or go on in it. InputError when another conversion has it or left it, or space is lacking.

        On an InputError inside, nothing is left of a conversion that began here, and what an earlier run had finished
        stays; after any other end the next run goes on.
        """
        fresh = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(lock, other_bytes, fresh)
            try:
                yield
            except InputError:
                if fresh:
                    shutil.rmtree(self.folder)
                raise
        finally:
            os.close(lock)

    def _take(self, lock: int, other_bytes: int, fresh: bool) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"Another process converts to {self.destination} now.", fix="Wait for it.") from None
        try:
            self.check_left_over()
            self.check_space(other_bytes)
        except InputError:
            if fresh:
                shutil.rmtree(self.folder)
            raise
        if not self.checkpoint.is_dir():  # records of files that are gone, with the destination that they became
            shutil.rmtree(self._done, ignore_errors=True)
        self._done.mkdir(exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)
        write_whole(self.folder / "job.json", json.dumps(self.identity(), indent=1))

    def check_left_over(self) -> None:
        """InputError when the working folder has what another conversion wrote."""
        file = self.folder / "job.json"
        if not file.is_file() or not self.checkpoint.is_dir():
            return
        try:
            same = json.loads(file.read_bytes()) == self.identity()
        except ValueError:
            same = False
        if not same:
            raise InputError(
                f"{self.folder} is what another conversion left unfinished (other options, or the source has changed).",
                fix="Finish that one by its own command, or delete the folder.",
            )

    def finished(self, file: FilePlan) -> dict[str, Any] | None:
        """The measurements of ``file`` when an earlier run finished it, else None."""
        record, written = self._done / f"{file.name}.json", self.checkpoint / file.name
        if not record.is_file() or not written.is_file() or written.stat().st_size != file.size:
            return None
        try:
            found = json.loads(record.read_bytes())
        except ValueError:  # the machine went down before it was on the disk
            return None
        return found if isinstance(found, dict) else None

    def begin(self, file: FilePlan) -> tuple[int, Path]:
        """``file`` open, with its space taken and its header written, and where it is until :meth:`finish`."""
        path = self.checkpoint / f".{file.name}.part"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.posix_fallocate(descriptor, 0, file.size)
        write_at(descriptor, file.header, 0)
        return descriptor, path

    def finish(self, file: FilePlan, descriptor: int, path: Path, measured: dict[str, Any]) -> None:
        """Give ``file`` its name: measurements first, for a name says that both are there."""
        os.fsync(descriptor)
        os.close(descriptor)
        write_whole(self._done / f"{file.name}.json", json.dumps(measured))
        path.replace(self.checkpoint / file.name)

    def publish(self) -> None:
        """Rename what is finished to the destination, and take the working folder away."""
        for file in self.checkpoint.glob(".*.part"):
            file.unlink()
        for inside in self.checkpoint.rglob("*"):  # the metadata too: a name has to mean that it is all there
            _sync(inside)
        _sync(self.checkpoint)
        self.checkpoint.rename(self.destination)
        _sync(self.destination.parent)
        shutil.rmtree(self.folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
