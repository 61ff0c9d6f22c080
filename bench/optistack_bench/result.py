"""The result of a benchmark: a JSON file that is whole at every moment, and says whether it is all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from optistack.errors import InputError
from optistack.files import write_whole
from optistack_bench.statistics import Estimate

RESULT_FILE = "result.json"
JOURNAL_FILE = "requests.jsonl"
RECORDED = "recorded"
"""The rate of an open loop in which sessions start when the trace says."""
NO_TOKEN = "no token"
"""The error of an answer that came whole, without any text."""
SHORT_WINDOW_S = 8.0
"""A repeat that counts for less says little: a pause of one second, or the prompts that all users send at once in the
beginning, are more than an eighth of it."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SessionHits(_Value):
    """``cached_tokens`` is None where the server does not say."""

    name: str
    requests: int
    prompt_tokens: int
    reusable_tokens: int
    cached_tokens: int | None = None


class Repeat(_Value):
    """The figures of one repeat. ``ended`` says why it was broken off; ``""`` for one that is whole."""

    figures: dict[str, float]
    by_domain: dict[str, dict[str, float]] = {}
    by_output: dict[str, dict[str, float]] = {}
    sessions: tuple[SessionHits, ...] = ()
    errors: dict[str, int] = {}
    first_error: str = ""
    counters: dict[str, float] = {}
    ended: str = ""


class Server(_Value):
    """Who was measured. ``engine`` and what follows are as it says of itself."""

    url: str
    model: str
    engine: str = "unknown"
    engine_version: str = "unknown"
    context_tokens: int | None = None
    kv_tokens: int | None = None
    kv_dtype: str | None = None
    gpus: int = 1
    plan_hash: str | None = None
    planned_kv_tokens: int | None = None


class WorkloadFacts(_Value):
    name: str
    digest: str
    rules: tuple[str, ...]
    sessions: int
    requests: int
    longest_tokens: int
    divide: int
    reusable_share: float
    skipped: tuple[str, ...] = ()


def load_name(users: int | None, rate: float | str | None) -> str:
    """What a load is called: that of an open loop where ``rate`` is given."""
    if rate is None:
        return f"{users} user{'s' if users != 1 else ''}"
    return f"{rate} sessions/s" if isinstance(rate, float) else "recorded times"


class Point(_Value):
    """One target under one load. ``users`` is None in an open loop."""

    target: str
    users: int | None
    rate: float | str | None = None
    server: Server
    workload: WorkloadFacts
    repeats: tuple[Repeat, ...] = ()

    @property
    def measured(self) -> tuple[Repeat, ...]:
        """The repeats that are whole, or, where there is none, what there is."""
        whole = tuple(repeat for repeat in self.repeats if not repeat.ended)
        return whole or self.repeats

    def estimate(self, figure: str) -> Estimate | None:
        values = tuple(repeat.figures[figure] for repeat in self.measured if figure in repeat.figures)
        return Estimate(values) if values else None

    def mean(self, figure: str) -> float | None:
        found = self.estimate(figure)
        return None if found is None else found.mean

    def values(self, name: str) -> float:
        """How many values the quantiles of ``name`` (``ttft_s``) were taken from, in the repeat that has the fewest. A
        result without that count has at least its whole answers' number."""
        repeats = (repeat.figures for repeat in self.measured)
        return min(
            (one.get(f"{name}_n", one.get("requests", 0.0) - one.get("errors", 0.0)) for one in repeats), default=0.0
        )

    @property
    def window_s(self) -> float | None:
        """The time that the shortest repeat counted; None in a result that does not say."""
        counted_s = (repeat.figures["window_s"] for repeat in self.measured if "window_s" in repeat.figures)
        return min(counted_s, default=None)

    @property
    def too_short(self) -> bool:
        """Whether a repeat counted too short a time to conclude from."""
        return self.window_s is not None and self.window_s < SHORT_WINDOW_S

    @property
    def error_share(self) -> float:
        """Requests that failed, of all, in the repeat that has the most."""
        shares = (
            repeat.figures.get("errors", 0.0) / (repeat.figures.get("requests") or 1.0) for repeat in self.repeats
        )
        return max(shares, default=0.0)

    @property
    def load(self) -> str:
        return load_name(self.users, self.rate)


class Result(_Value):
    """``state`` is ``running`` while it is made, and stays so when the process is killed; ``partial`` has a ``why``:
    it was broken off, or of one of its loads no request was answered. ``loads`` are those that each target was to be
    measured under."""

    format: Literal[1] = 1
    optistack_version: str
    made_at: str
    machine: str
    settings: dict[str, Any]
    state: Literal["running", "complete", "partial"] = "running"
    why: str = ""
    points: tuple[Point, ...] = ()
    loads: dict[str, tuple[str, ...]] = {}

    @property
    def max_errors(self) -> float:
        """The share of a repeat's requests that may fail in a run that is well."""
        return float(self.settings.get("max_errors", 0.0))

    def with_point(self, point: Point) -> Result:
        """``point`` in the place of the one of the same target and load, or behind the others."""
        same = (point.target, point.users, point.rate)
        others = [one for one in self.points if (one.target, one.users, one.rate) != same]
        return self.model_copy(update={"points": (*others, point)})

    @property
    def unanswered(self) -> str:
        """The first load of which no answer can be measured, and what became of its requests; ``""`` for none."""
        for point in self.points:
            if point.mean("ttft_s_p50") is None:
                return f"{point.target}, {point.load}: {_without_answers(point)}."
        return ""

    @property
    def problem(self) -> str:
        """Why this is no measurement to go by; ``""`` for one that is whole."""
        if self.state != "complete":
            return f"The benchmark is partial: {self.why or 'it was broken off, or still runs.'}"
        if self.unanswered:
            return self.unanswered
        for point in self.points:
            if point.error_share > self.max_errors:
                return (
                    f"{point.target}, {point.load}: {point.error_share:.1%} of a repeat's requests failed, and "
                    f"--max-errors allows {self.max_errors:.1%}."
                )
        return "" if self.points else "Nothing was measured."

    @property
    def exit_code(self) -> int:
        return 1 if self.problem else 0


def _without_answers(point: Point) -> str:
    """What became of the requests of a point without a latency, with its errors by kind."""
    errors: Counter[str] = Counter()
    for repeat in point.repeats:
        errors.update(repeat.errors)
    said = ", ".join(f"{count} x {kind}" for kind, count in sorted(errors.items()))
    what = "no answer had a token" if NO_TOKEN in errors else "no request was answered"
    return f"{what} ({said})" if said else what


def save_result(result: Result, folder: Path) -> None:
    write_whole(folder / RESULT_FILE, result.model_dump_json(indent=1) + "\n", mode=0o644)


def load_result(path: Path) -> Result:
    """The result in the folder, or the file, ``path``. Raises InputError when there is none."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        return Result.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}.", fix="Give a folder that `optistack bench --out` wrote."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise InputError(
            f"{file} is no result of `optistack bench` ({what}).", fix="Give its folder or result.json."
        ) from error
