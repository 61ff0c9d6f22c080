"""``asyncio.run`` for something that may be told to end: it unwinds within the loop, and only then it is raised."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from optistack.apply.termination import Interrupted, termination_told

T = TypeVar("T")


def run_until_told(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which SIGTERM and SIGHUP cancel, as Ctrl-C does under ``asyncio.run``.

    An exception that a signal handler raises ends whatever callback is running, and leaves tasks behind in a loop that
    is closed; raised in a finalizer, it is lost. Raises Interrupted when everything is cancelled and has ended.
    """
    told: list[int] = []
    cancel: list[Callable[[], object]] = []

    def tell(signum: int, frame: FrameType | None) -> None:
        told.append(signum)
        if len(told) == 1:  # one is enough: a second one would cancel the unwinding
            for one in cancel:
                one()

    async def main() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            if told:
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            cancel.clear()

    with termination_told(tell), no_collection():
        try:
            result = asyncio.run(main())
        except asyncio.CancelledError:
            if not told:
                raise
        finally:
            work.close()  # one that an interruption came before was never begun
    if told:
        raise Interrupted(told[0])
    return result


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, whose pauses would stand in the latencies; a repeat makes little garbage.

    The closed loop is garbage with a finalizer: it is collected at the end, while signals are only noted."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        if was:
            gc.enable()
