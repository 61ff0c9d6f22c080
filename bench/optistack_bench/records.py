"""What became of each request, kept while it happens."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from optistack.errors import InputError
from optistack_bench.client import Answer
from optistack_bench.result import NO_TOKEN
from optistack_bench.workload import Session, Turn


@dataclass(slots=True)
class Record:
    """One request. Times are seconds since its repeat began, by the monotonic clock.

    ``think_s``  the pause before it
    ``first_s``  the first token's arrival; None for an answer without any
    ``connect_s``  what opening a connection took before ``start_s``; None on one that was open
    ``gaps_s``   between the chunks that followed, in order
    ``prompt_tokens``, ``output_tokens``  as the server counts them, as asked where it does not
    ``sent_tokens``  of the prompt as it was sent; None in a chat, whose length the server alone knows
    ``counted``  whether the server's usage said both
    ``cached_tokens``  by the server's usage; None where that does not say
    ``reusable_tokens``  what the workload allows at best
    ``error``    "" for an answer that is whole; such requests alone count into latencies
    """

    session: str
    domain: str
    turn: int
    start_s: float
    end_s: float
    first_s: float | None
    think_s: float
    prompt_tokens: int
    output_tokens: int
    asked_tokens: int
    cached_tokens: int | None
    reusable_tokens: int
    error: str = ""
    detail: str = ""
    counted: bool = True
    sent_tokens: int | None = None
    connect_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)

    @property
    def possible_of_tokens(self) -> int:
        """The prompt that ``reusable_tokens`` are a part of."""
        return self.prompt_tokens if self.sent_tokens is None else self.sent_tokens

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.start_s

    @property
    def latency_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def decode_s(self) -> float:
        """From the first chunk to the last."""
        return sum(self.gaps_s)

    @property
    def tokens_per_s(self) -> float | None:
        """What its user sees: tokens after the first a second; None for an answer that came in one piece."""
        return (self.output_tokens - 1) / self.decode_s if self.output_tokens > 1 and self.decode_s > 0 else None


def record_of(answer: Answer, session: Session, number: int, turn: Turn, zero_s: float, think_s: float) -> Record:
    usage = answer.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    chunks = answer.chunks_s
    return Record(
        session=session.name,
        domain=session.domain,
        turn=number,
        start_s=answer.sent_s - zero_s,
        end_s=answer.ended_s - zero_s,
        first_s=chunks[0] - zero_s if chunks else None,
        think_s=think_s,
        prompt_tokens=int(usage.get("prompt_tokens") or turn.prompt_tokens),
        output_tokens=int(usage.get("completion_tokens") or len(chunks)),
        asked_tokens=turn.output_tokens,
        cached_tokens=details.get("cached_tokens"),
        reusable_tokens=turn.reusable_tokens,
        error=answer.error or ("" if chunks else NO_TOKEN),
        detail=answer.detail,
        counted=usage.get("prompt_tokens") is not None and usage.get("completion_tokens") is not None,
        sent_tokens=None if turn.text else turn.prompt_tokens,
        connect_s=answer.connect_s,
        gaps_s=[after - before for before, after in pairwise(chunks)],
    )


class Journal:
    """A file of JSON lines, one a request, written as they come, so that what was measured outlives what fails.

    ``path`` None keeps nothing; ``records`` is how many came. The first that cannot be written is the last that is
    tried, ``lost`` says so, and no part of it stays. Raises InputError where there is a file already, and OSError when
    none can be made.
    """

    def __init__(self, path: Path | None) -> None:
        try:
            self._file: BinaryIO | None = path.open("xb") if path else None
        except FileExistsError as error:
            raise InputError(f"{path} is there already.", fix="Name another folder, or move the file away.") from error
        self.records = 0
        self.lost = ""
        self._path, self._bytes = path, 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, record: Record, **where: Any) -> None:
        self.records += 1
        if self._file is None:
            return
        row = {**where, **{key: _short(value) for key, value in asdict(record).items()}}
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            self._bytes += len(line)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        assert self._file is not None and self._path is not None
        with contextlib.suppress(OSError):  # of what the file still holds back
            self._file.close()
        self._file = None
        os.truncate(self._path, self._bytes)
        self.lost = f"{self._path} ends after {self.records - 1:,} requests: {error.strerror}."


def _short(value: Any) -> Any:
    """Times to tenths of a millisecond: an answer's line stays short."""
    if isinstance(value, float):
        return round(value, 4)
    return [round(one, 4) for one in value] if isinstance(value, list) else value
