"""What the router asks precise mode: how much of a request's prompt does each replica hold?"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol
from zlib import crc32

from optistack_routing.kv_index.index import BlockIndex
from optistack_routing.kv_index.prompt import PromptReader
from optistack_routing.kv_index.session_tokens import MAX_BYTES, SessionTokens
from optistack_routing.kv_index.subscriber import Subscriber

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""How long a request waits for its prediction; after that it is routed without one."""
QUIET_S = 10.0
"""Between two lines of the log about one replica's wrong predictions."""
LANES = 4
"""Threads that make prompts into tokens. A session has its own, so that a long first turn delays few others; tokenizing
itself does not hold the interpreter's lock."""


class Overlap(Protocol):
    """Precise mode as the router sees it."""

    async def of(self, body: bytes, session: str | None) -> dict[str, int] | None:
        """Prompt tokens that each replica's cache holds; None when that cannot be said (in time)."""

    def served(self, replica: str, predicted_tokens: int, cached_tokens: int) -> None:
        """``replica`` has answered a request for which ``predicted_tokens`` were predicted, and ``cached_tokens`` came
        from its cache, as its usage says."""

    def join(self, replica: str, events: str, replay: str | None) -> None:
        """``replica`` is in the fleet and publishes its KV events at ``events``."""

    def leave(self, replica: str) -> None: ...

    def state(self) -> dict[str, int]:
        """What it has counted, for the admin side."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Counts:
    """For the router's metrics.

    ``predicted``   requests with a prediction; ``unread``: with a prompt that cannot be tokenized here; ``late``
    ``agreed``      answers whose cached tokens were within a page of the prediction; ``over``, ``under``: predicted
                    more or less than that
    """

    predicted: int = 0
    unread: int = 0
    late: int = 0
    agreed: int = 0
    over: int = 0
    under: int = 0


class PreciseOverlap:
    """An index that follows the replicas' events, asked from a thread of its own.

    ``checkpoint``      the folder with the tokenizer and the chat template
    ``page_tokens``     of a KV page, as the plan has it; blocks of another size are not used
    ``dropped_pages``   pages at the end of a hit that the engine computes again under its kind of speculation
    """

    def __init__(self, checkpoint: Path, page_tokens: int, *, dropped_pages: int = 0) -> None:
        self.index = BlockIndex(page_tokens)
        self.counts = Counts()
        self.subscriber = Subscriber(self.index)
        self._dropped_tokens = dropped_pages * page_tokens
        self._reader = PromptReader(checkpoint)
        self._lanes = [
            (ThreadPoolExecutor(1, f"kv-overlap-{number}"), self._session_tokens()) for number in range(LANES)
        ]
        self._quiet_until_s: dict[str, float] = {}

    async def of(self, body: bytes, session: str | None) -> dict[str, int] | None:
        worker, tokens = self._lane(body, session)
        work = asyncio.get_running_loop().run_in_executor(worker, self._predict, tokens, body, session)
        try:
            found = await asyncio.wait_for(work, PATIENCE_S)
        except TimeoutError:
            self.counts.late += 1
            return None
        if found is None:
            self.counts.unread += 1
        else:
            self.counts.predicted += 1
        return found

    def predict(self, body: bytes, session: str | None) -> dict[str, int] | None:
        """As :meth:`of`, at once; not beside it."""
        return self._predict(self._lane(body, session)[1], body, session)

    def _lane(self, body: bytes, session: str | None) -> tuple[ThreadPoolExecutor, SessionTokens]:
        return self._lanes[crc32(session.encode() if session is not None else body[:1024]) % LANES]

    def _session_tokens(self) -> SessionTokens:
        reader, page = self._reader, self.index.page_tokens
        return SessionTokens(reader.tokenizer, page, reader.marks, max_bytes=MAX_BYTES // LANES)

    def _predict(self, known: SessionTokens, body: bytes, session: str | None) -> dict[str, int] | None:
        prompt = self._reader.read(body)
        if prompt is None:
            return None
        tokens = known.of(prompt, session)
        found, blocks = self.index.cached_of(tokens.keys, tokens.count), self.index.blocks()
        # Without a single block nothing has been heard of a replica yet, which does not say that its cache is empty.
        return {name: max(0, cached - self._dropped_tokens) for name, cached in found.items() if blocks.get(name)}

    def served(self, replica: str, predicted_tokens: int, cached_tokens: int) -> None:
        off = cached_tokens - predicted_tokens
        if abs(off) <= self.index.page_tokens:
            self.counts.agreed += 1
            return
        if off < 0:
            self.counts.over += 1
        else:
            self.counts.under += 1
        now = time.monotonic()
        if now >= self._quiet_until_s.get(replica, 0.0):
            self._quiet_until_s[replica] = now + QUIET_S
            log.warning(
                "%s served %d prompt tokens from its cache, and its KV events say %d.",
                replica,
                cached_tokens,
                predicted_tokens,
            )

    def join(self, replica: str, events: str, replay: str | None) -> None:
        self.subscriber.follow(replica, events, replay)

    def leave(self, replica: str) -> None:
        self.subscriber.drop(replica)
        self._quiet_until_s.pop(replica, None)

    def state(self) -> dict[str, int]:
        stream, index = self.subscriber.counts, self.index.counts
        return {
            **asdict(self.counts),
            "blocks": sum(self.index.blocks().values()),
            "blocks_of_other_size": index.other_pages,
            "blocks_unplaced": index.unplaced,
            "gaps": stream.gaps,
            "restarts": stream.restarts,
            "malformed": stream.malformed,
        }

    def close(self) -> None:
        for worker, _ in self._lanes:
            worker.shutdown(wait=False, cancel_futures=True)
        self.subscriber.close()
