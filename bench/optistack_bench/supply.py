"""The sessions of a closed loop: those of a workload, and further ones of its kind while a stated time is not over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from optistack_bench.workload import Session


class Supply:
    """Hands out ``sessions`` in their order: the first ``least`` however long they take, those behind them only while
    ``seconds`` from the first are not over. When all are handed out before that, ``more(number)`` makes a workload of
    twice as many, in a thread; its head is the one that there was. None makes no more."""

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        least: int | None = None,
        seconds: float = 0.0,
        more: Callable[[int], Sequence[Session]] | None = None,
    ) -> None:
        self._queue = deque(sessions)
        self._least = len(sessions) if least is None else least
        self._seconds, self._more = seconds, more
        self._made = self._asked = len(sessions)
        self._lock = asyncio.Lock()
        self._began_s: float | None = None
        self.given = 0

    async def next(self) -> Session | None:
        """The next session, or None when none is to begin any more. Raises as ``more`` does."""
        if self._began_s is None:
            self._began_s = perf_counter()
        async with self._lock:
            over = perf_counter() - self._began_s >= self._seconds
            if self.given >= self._least and over:
                return None
            while not self._queue:
                if self._more is None:
                    return None
                self._asked *= 2
                made = await asyncio.to_thread(self._more, self._asked)
                self._queue.extend(made[self._made :])
                self._made = len(made)
            self.given += 1
            return self._queue.popleft()
