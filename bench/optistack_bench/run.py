"""Run a benchmark: every point in turn, the result kept after each repeat whatever happens next."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import optistack
from optistack.apply.termination import termination_raises
from optistack.errors import InputError, OptistackError
from optistack.verify.endpoint import first_answer_of
from optistack_bench.load import Loop
from optistack_bench.result import JOURNAL_FILE, RESULT_FILE, Point, Result, save_result
from optistack_bench.settings import Settings

if TYPE_CHECKING:
    from optistack.engines.progress import Progress
    from optistack_bench.target import Target


class Run:
    """A result in the making. ``folder`` None keeps nothing on disk."""

    def __init__(self, settings: Settings, folder: Path | None, loads: Mapping[str, Sequence[Loop]]) -> None:
        from optistack_bench.records import Journal

        self._folder = folder
        self.journal = Journal(folder / JOURNAL_FILE if folder else None)
        self.result = Result(
            optistack_version=optistack.__version__,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=platform.platform(),
            settings=settings.as_json(),
            loads={target: tuple(loop.name for loop in loops) for target, loops in loads.items()},
        )
        self._saved, self._lost = 0, ""
        self._save()
        if self._lost:
            self.close()
            raise InputError(self._lost, fix="Make room, or name another folder.")

    def keep(self, point: Point) -> None:
        self.result = self.result.with_point(point)
        self._save()

    def _save(self) -> None:
        """What cannot be written is not the end: the figures are shown all the same."""
        if self._folder is None:
            return
        try:
            save_result(self.result, self._folder)
            self._saved, self._lost = sum(len(point.repeats) for point in self.result.points), ""
        except OSError as error:
            self._lost = f"{self._folder / RESULT_FILE} has {self._saved} repeats and takes no more: {error.strerror}."

    def close(self) -> None:
        """Save the result, or leave no file behind where no request was counted. A file that is not whole makes the
        result partial, and is named."""
        self.journal.close()
        if self._folder is not None and not self.result.points and not self.journal.records:
            for name in (RESULT_FILE, JOURNAL_FILE):
                (self._folder / name).unlink(missing_ok=True)
            return
        if self.journal.lost:
            self._doubt(self.journal.lost)
        self._save()
        if self._lost:
            self._doubt(self._lost)

    def _doubt(self, why: str) -> None:
        self.result = self.result.model_copy(update={"state": "partial", "why": f"{self.result.why} {why}".strip()})

    def measure(self, target: Target, settings: Settings, loops: Sequence[Loop], progress: Progress) -> None:
        """Every load in turn, the smallest first as given; ends the run when the server dies."""
        from optistack_bench.measure import Bench

        progress.step(f"Measuring {target.name}, {first_answer_of(target.shown_url)}")
        with Bench(target, settings, self.journal, progress) as bench:
            for loop in loops:
                point = bench.point(loop, self.keep)
                ended = next((repeat.ended for repeat in point.repeats if repeat.ended), "")
                if ended:
                    raise _EndedError(ended)


class _EndedError(Exception):
    """The server died in the middle."""


@contextmanager
def running(settings: Settings, folder: Path | None, loads: Mapping[str, Sequence[Loop]]) -> Iterator[Run]:
    """A run that is marked at its end: complete, or partial and why. ``loads`` are those of each target.

    A server's death ends the block quietly, since the result says it. An error with nothing measured before is raised
    as it is; an error after that is kept as the reason, and raised only when it is an interruption.
    """
    run = Run(settings, folder, loads)
    with termination_raises():
        try:
            yield run
            why = run.result.unanswered
            run.result = run.result.model_copy(update={"state": "partial" if why else "complete", "why": why})
        except _EndedError as error:
            run.result = run.result.model_copy(update={"state": "partial", "why": str(error)})
        except OptistackError as error:
            run.result = run.result.model_copy(update={"state": "partial", "why": error.message})
            if not run.result.points:
                raise
        except BaseException as error:
            why = "It was interrupted." if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            run.result = run.result.model_copy(update={"state": "partial", "why": why})
            raise
        finally:
            run.close()


def run_endpoint(
    target: Target, settings: Settings, loops: Sequence[Loop], *, out: Path | None, progress: Progress
) -> Result:
    """Measure a server that is there. Raises InputError when it is not."""
    with running(settings, out, {target.name: loops}) as run:
        run.measure(target, settings, loops, progress)
    return run.result
