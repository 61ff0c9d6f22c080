"""What is asked of a benchmark, and the workload that comes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optistack.errors import InputError, nearest
from optistack.traces import read_trace
from optistack_bench.chat import ChatTexts, chat_workload
from optistack_bench.replay import replay
from optistack_bench.result import RECORDED
from optistack_bench.supply import Supply
from optistack_bench.synthetic import FIRST_PROMPT_TOKENS, MADE, SHAPES, Texts, sessions
from optistack_bench.tokens import Sizes, TokenMaker
from optistack_bench.workload import MAX_DIVIDE, Session, Workload, check_fits, prefill_only

if TYPE_CHECKING:
    from optistack_bench.load import Loop

RECORDED_FIX = "--rate recorded is for traces of Mooncake; give a number of sessions a second."
WORKLOADS = ("sessions", "trace", *SHAPES)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS = ("host", "authorization", "content-type", "content-length", "transfer-encoding", "connection")
"""What a request has already, or what would change how it is read."""


@dataclass(frozen=True)
class Settings:
    """``divide`` None divides sessions by what fits, and leaves other workloads as they are; 0 divides any by what
    fits. ``warmup`` is requests of each user before anything counts. ``max_errors`` is the share of a repeat's requests
    that may fail in a run that is well. ``min_seconds`` is how long a closed loop goes on at least.
    ``chat`` sends messages instead of token ids, with ``tools`` to call."""

    workload: str = "sessions"
    trace: Path | None = None
    sessions: int | None = None
    turns: int | None = None
    domains: tuple[str, ...] = ("code", "prose")
    divide: int | None = None
    think_limit_s: float = 30.0
    repeats: int = 3
    warmup: int = 1
    seed: int = 0
    prefill_only: bool = False
    session_header: str = "X-Session-Id"
    timeout_s: float = 600.0
    context_tokens: int | None = None
    max_errors: float = 0.0
    min_seconds: float = 0.0
    chat: bool = False
    tools: bool = False

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise InputError(f"There is no workload {self.workload!r}.", fix=nearest(self.workload, WORKLOADS))
        if (self.trace is not None) != (self.workload == "trace"):
            raise InputError(
                "A trace is replayed by the workload trace." if self.trace else "Which trace is to be replayed?",
                fix="Give --workload trace and --trace FILE.",
            )
        if self.chat and (self.trace is not None or MADE in self.domains):
            raise InputError(
                "A chat needs real text, which traces and random words do not have.",
                fix="Leave out --chat, or take another workload with --domain code or prose.",
            )
        if self.tools and not self.chat:
            raise InputError("Tools are offered in a chat only.", fix="Give --chat too.")
        if not HEADER_NAME.fullmatch(self.session_header) or self.session_header.lower() in OWN_HEADERS:
            raise InputError(
                f"--session-header {self.session_header!r} is no header that can carry a session.",
                fix="Give a name of letters, digits and hyphens, like X-Session-Id.",
            )
        if self.divide and (self.divide & (self.divide - 1) or self.divide > MAX_DIVIDE):
            raise InputError(
                f"--divide {self.divide} is no power of two up to {MAX_DIVIDE}.",
                fix="Give 1, 2, 4, ..., or auto.",
            )

    def check_loads(self, loops: Sequence[Loop]) -> None:
        """Raise InputError for a load that these sessions cannot make up: more users than there are, or an open loop of
        nobody knows how many."""
        most = max(loops, key=lambda loop: loop.users)
        if self.sessions is not None and most.rate is None and most.users > self.sessions:
            raise InputError(
                f"{most.users:,} users cannot be at work with --sessions {self.sessions}: each plays one at a time.",
                fix=f"Give --sessions {2 * most.users} or more, or fewer users.",
            )
        for loop in loops:
            if loop.rate is not None and self.trace is None and loop.rate == RECORDED:
                raise InputError(f"{self.workload} does not say when its sessions began.", fix=RECORDED_FIX)
            if loop.rate is not None and self.trace is None and self.sessions is None:
                raise InputError(
                    f"How many sessions are to be started at --rate {loop.rate:g}?",
                    fix="Give --sessions: at least as many as begin in the time that a session takes, and several "
                    "times as many for a steady load.",
                )
            if loop.rate is not None and self.min_seconds:
                raise InputError(
                    "--min-seconds is for a number of users: at a rate, --sessions says how long it takes.",
                    fix="Leave out --min-seconds, or give --users instead of --rate.",
                )

    @property
    def needs_text(self) -> bool:
        return self.workload != "trace" and set(self.domains) != {MADE}

    def as_json(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    def text_tokens(self, context_tokens: int | None) -> int:
        """How long the text of a session may get."""
        longest = 2 * FIRST_PROMPT_TOKENS
        return min(longest, context_tokens) if context_tokens else longest


class WorkloadMaker:
    """Makes the same workload for every repeat, with other tokens: what one repeat left in a cache is of no use to the
    next. The scaling is settled once, by the first."""

    def __init__(
        self, settings: Settings, *, loop: Loop, texts: Texts | ChatTexts, context_tokens: int | None, model: str
    ) -> None:
        self._settings, self._texts = settings, texts
        self._context_tokens = context_tokens
        self._trace = read_trace(settings.trace) if settings.trace else None
        whole = len(self._trace.sessions) if self._trace is not None and loop.rate is not None else 0
        self.number = settings.sessions or whole or max(2 * loop.users, len(texts.domains))
        self.divide = self._settled(model)

    def make(self, salt: int) -> Workload:
        """Raises InputError when there is too much to tell apart."""
        return self._build(TokenMaker(salt), self.divide, self._texts, self.number)

    def supply(self, salt: int, least: Workload, needed: int) -> Supply:
        """The sessions of a closed loop that plays ``least`` and goes on for the seconds that were asked for.
        ``needed`` of them are made now, as many as the repeats before took."""
        if not self._settings.min_seconds:
            return Supply(least.sessions)
        return Supply(
            self._sessions(salt, needed) if needed > self.number else least.sessions,
            least=len(least.sessions),
            seconds=self._settings.min_seconds,
            more=lambda number: self._sessions(salt, number),
        )

    def _sessions(self, salt: int, number: int) -> tuple[Session, ...]:
        """Those of ``make``, and as many behind them as make up ``number``, less those of them that do not fit the
        model's context: it was settled with the others."""
        made = self._build(TokenMaker(salt), self.divide, self._texts, number)
        most = self._context_tokens
        return tuple(one for one in made.sessions if most is None or one.longest_tokens <= most)

    def _settled(self, model: str) -> int:
        asked = self._settings.divide
        if asked is None:
            asked = 0 if self._settings.workload == "sessions" else 1
        divide = asked or 1
        while True:
            texts = self._texts
            if isinstance(texts, Texts):
                texts = Texts(dict.fromkeys(texts.corpora, ()))
            workload = self._build(Sizes(), divide, texts, self.number)
            fits = self._context_tokens is None or workload.longest_tokens <= self._context_tokens
            if asked or fits or divide >= MAX_DIVIDE:
                check_fits(workload, self._context_tokens, model, divide=divide)
                return divide
            divide *= 2

    def _build(self, maker: TokenMaker, divide: int, texts: Texts | ChatTexts, number: int) -> Workload:
        made = self._whole(maker, divide, texts, number)
        if seconds := self._settings.min_seconds:
            rule = f"Further sessions of the same kind begin until {seconds:g} s are over."
            made = replace(made, rules=(*made.rules, rule))
        return prefill_only(made) if self._settings.prefill_only else made

    def _whole(self, maker: TokenMaker, divide: int, texts: Texts | ChatTexts, number: int) -> Workload:
        asked = self._settings
        common: dict[str, Any] = {"divide": divide, "seed": asked.seed}
        paced: dict[str, Any] = {"turns": asked.turns, "think_limit_s": asked.think_limit_s}
        if isinstance(texts, ChatTexts):
            return chat_workload(
                asked.workload,
                number=number,
                salt=maker.salt,
                texts=texts,
                tools=asked.tools,
                **paced,
                **common,
            )
        common["maker"] = maker
        if self._trace is not None and asked.trace is not None:
            return replay(self._trace, name=f"trace {asked.trace.name}", sessions=number, **paced, **common)
        common["answers"] = not asked.prefill_only
        if asked.workload == "sessions":
            return sessions(number=number, texts=texts, **paced, **common)
        return SHAPES[asked.workload](number=number, texts=texts, **common)
