"""Measure one server under one load: warm up, repeat, and keep what is there when something fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time

from optistack.cli.options import API_KEY_VARIABLE
from optistack.engines.progress import Progress
from optistack.errors import CheckFailedError, InputError, OptistackError
from optistack.verify.endpoint import Endpoint, without_login
from optistack.verify.liveness import takes_connections
from optistack_bench.chat import TEMPLATE_TOKENS, TOOLS_TOKENS, ChatTexts
from optistack_bench.client import CONNECTION_ERRORS, ERROR_EVENT, TIMEOUT, Client
from optistack_bench.conversation import TOOLS
from optistack_bench.corpus import read_chat_texts, read_texts
from optistack_bench.counters import Counts, between, pages, read_gauges, read_totals
from optistack_bench.ending import run_until_told
from optistack_bench.load import Loop, Played, Player
from optistack_bench.records import Journal, Record
from optistack_bench.result import RECORDED, Point, Repeat, Server, WorkloadFacts
from optistack_bench.server import read_server
from optistack_bench.settings import RECORDED_FIX, Settings, WorkloadMaker
from optistack_bench.summary import summarize
from optistack_bench.supply import Supply
from optistack_bench.synthetic import Texts
from optistack_bench.target import Target
from optistack_bench.terminal import printable
from optistack_bench.workload import Workload

GAUGES_EVERY_S = 1.0
METRICS_TIMEOUT_S = 3.0
"""A page that takes longer is left out: the end of a run waits for the one that is being read."""
LONG_S = 60.0
"""Arrivals that take longer are told before they begin."""
NEEDED = "It has to take token ids as the prompt of /v1/completions, and to stream."
NEEDED_IN_A_CHAT = "It has to chat at /v1/chat/completions and to stream; with --tools, to have a parser of tool calls."


def _fix(error: str, chat: bool) -> str:
    """What to do about a server that answers every request of the warm-up with ``error``."""
    if error in ("HTTP 401", "HTTP 403"):
        return f"Put the key into {API_KEY_VARIABLE}."
    if error == "HTTP 429":
        return "It takes fewer requests than these: give fewer users, or raise its limit."
    if error == TIMEOUT:
        return "Give more seconds with --timeout; its log says what it is at."
    if error in (ERROR_EVENT, *CONNECTION_ERRORS) or error.startswith("HTTP 5"):
        return "Its log says why."
    return NEEDED_IN_A_CHAT if chat else NEEDED


@dataclass
class Bench:
    """A server that is ready to be measured, with the texts that prompts are made of. Use as a context manager."""

    target: Target
    settings: Settings
    journal: Journal
    progress: Progress
    server: Server = field(init=False)
    texts: Texts | ChatTexts = field(default_factory=lambda: Texts({}))
    text_rule: str = ""
    salts: int = 0
    plays: int = 0

    def __enter__(self) -> Bench:
        """Raises InputError when nobody answers, or what is asked for cannot be had there."""
        self.target.check_engines()
        key = os.environ.get(API_KEY_VARIABLE)
        self._front = Endpoint(self.target.url, api_key=key)
        engines = self.target.engines or (self.target.url,)
        self._engine = Endpoint(engines[0], api_key=key)
        self._counters = [Endpoint(url, api_key=key, timeout_s=METRICS_TIMEOUT_S) for url in engines]
        try:
            self._ask()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for endpoint in (self._front, self._engine, *self._counters):
            endpoint.close()

    def _ask(self) -> None:
        self.server = read_server(self._front, self._engine, self.target, self.settings.context_tokens)
        if self.settings.needs_text:
            longest = self.settings.text_tokens(self.server.context_tokens)
            read = read_chat_texts if self.settings.chat else read_texts
            self.texts, self.text_rule = read(self._engine, self.settings.domains, longest_tokens=longest)

    def point(self, loop: Loop, keep: Callable[[Point], None]) -> Point:
        """Measure under ``loop``. ``keep`` is given the point after each repeat, and also when it is broken off.

        A repeat that the server does not survive is kept and marked. Raises InputError for a workload that does not
        fit or does not say when its sessions began, and CheckFailedError when the server answers the warm-up with
        errors only.
        """
        self.progress.detail(f"{loop.name}: making the workload")
        maker = WorkloadMaker(
            self.settings,
            loop=loop,
            texts=self.texts,
            context_tokens=self.server.context_tokens,
            model=self.server.model,
        )
        workload = maker.make(0)  # stands for all repeats: they differ in their tokens only
        if loop.rate == RECORDED and any(session.start_s is None for session in workload.sessions):
            raise InputError(
                f"{workload.name} does not say when its sessions began.",
                fix=RECORDED_FIX,
            )
        point = Point(
            target=self.target.name,
            users=loop.users if loop.rate is None else None,
            rate=loop.rate,
            server=self.server,
            workload=self._facts(workload, maker.divide),
        )
        self._tell_arrivals(workload, loop)
        self._warm_up(maker, loop, point)
        needed = maker.number
        for number in range(self.settings.repeats):
            salt = self._salt()
            least = maker.make(salt)
            supply = maker.supply(salt, least, needed)
            repeat = self._repeat(least, supply, loop, number, point)
            needed = max(needed, supply.given)
            point = point.model_copy(update={"repeats": (*point.repeats, repeat)})
            keep(point)
            if repeat.ended:
                break
        return point

    def _tell_arrivals(self, workload: Workload, loop: Loop) -> None:
        """How long an open loop takes before its last session has begun, if that is long."""
        arrivals_s = loop.arrivals_s(workload.sessions)
        if arrivals_s > LONG_S:
            each = f", each of {self.settings.repeats} repeats" if self.settings.repeats > 1 else ""
            self.progress.step(
                f"{len(workload.sessions):,} sessions at {loop.name} take about {arrivals_s / 60:,.0f} min to "
                f"begin{each}"
            )

    def _salt(self) -> int:
        """Another one each time: what was sent before is in nobody's cache. The same in every run of equal settings."""
        self.salts += 1
        return self.salts

    def _facts(self, workload: Workload, divide: int) -> WorkloadFacts:
        turns = list(workload.turns())
        prompt = sum(turn.prompt_tokens for turn in turns)
        return WorkloadFacts(
            name=workload.name,
            digest=workload.digest(),
            rules=tuple(rule for rule in (*workload.rules, self.text_rule, self.target.rule) if rule),
            sessions=len(workload.sessions),
            requests=len(turns),
            longest_tokens=workload.longest_tokens,
            divide=divide,
            reusable_share=sum(turn.reusable_tokens for turn in turns) / prompt,
            skipped=workload.skipped,
        )

    def _warm_up(self, maker: WorkloadMaker, loop: Loop, point: Point) -> None:
        if not self.settings.warmup:
            return
        self.progress.detail(f"{point.load}: warming up")
        whole = maker.make(self._salt())
        users = max(loop.users, len(self.target.urls))
        first = whole.sessions[:users]
        cut = [replace(session, turns=session.turns[: self.settings.warmup]) for session in first]
        played = self._play(Workload("warm-up", tuple(cut), ()), Loop(users=users), lambda record: None)
        if played.ended or all(record.error for record in played.records):
            bad = next((record for record in played.records if record.error), None)
            said = printable(f"{bad.error}: {bad.detail}") if bad else played.ended
            if played.ended:
                raise CheckFailedError(
                    f"{self.target.shown_url} went away in the warm-up: {said}.",
                    fix="Its log says why; start it again.",
                )
            raise CheckFailedError(
                f"{self.target.shown_url} answered no request of the warm-up: {said}.",
                fix=_fix(bad.error if bad else "", self.settings.chat),
            )

    def _repeat(self, workload: Workload, supply: Supply, loop: Loop, number: int, point: Point) -> Repeat:
        total = sum(1 for _ in workload.turns())
        least = "at least " if self.settings.min_seconds else ""
        seen = failed = 0

        def on_record(record: Record) -> None:
            nonlocal seen, failed
            seen, failed = seen + 1, failed + bool(record.error)
            self.journal.add(record, target=point.target, load=point.load, repeat=number)
            bad = f", {failed} errors" if failed else ""
            self.progress.detail(
                f"{point.load}, repeat {number + 1} of {self.settings.repeats}: {seen} of {least}{total} requests{bad}"
            )

        before = self._totals()
        gauges: list[dict[str, float]] = []
        cpu_s, wall_s = process_time(), perf_counter()
        played = self._play(workload, loop, on_record, gauges, supply)
        share = (process_time() - cpu_s) / (perf_counter() - wall_s)
        spare = (TEMPLATE_TOKENS + self.settings.tools * TOOLS_TOKENS) if self.settings.chat else 0
        # The counters of one that ended cannot be read any more, and the generator waited for it.
        counts = Counts({}) if played.ended else between(before, self._totals())
        exact = "ignore_eos" in self._fields()
        repeat = summarize(played, counts, gauges, gpus=self.target.gpus, spare_tokens=spare, exact=exact)
        if played.ended:
            return repeat
        return repeat.model_copy(update={"figures": {**repeat.figures, "generator_cpu": share}})

    def _play(
        self,
        workload: Workload,
        loop: Loop,
        on_record: Callable[[Record], None],
        gauges: list[dict[str, float]] | None = None,
        supply: Supply | None = None,
    ) -> Played:
        async def work() -> Played:
            key = os.environ.get(API_KEY_VARIABLE)
            asked = self.settings
            clients = [
                Client(url, self._fields(), asked.session_header, key, asked.timeout_s, asked.chat)
                for url in self.target.urls
            ]
            self.plays += 1
            player = Player(clients, loop, seed=asked.seed, run=self.plays, on_record=on_record, alive=self._alive)
            watch = asyncio.ensure_future(self._watch(gauges)) if gauges is not None else None
            try:
                return await player.play(workload, supply)
            finally:
                if watch is not None:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)

        return run_until_told(work())

    def _fields(self) -> dict[str, object]:
        """What every request asks for: greedy answers of exactly the length that the workload says, which no chat has:
        what comes behind a model's own end is of a kind that nobody drafts or parses."""
        fields: dict[str, object] = {"model": self.server.model, "temperature": 0}
        if self.settings.chat:
            return fields | ({"tools": TOOLS} if self.settings.tools else {})
        return fields | {"ignore_eos": True} if self.server.engine != "unknown" else fields

    def _totals(self) -> dict[str, float] | None:
        try:
            return read_totals(pages(self._counters))
        except OptistackError:
            return None

    async def _watch(self, gauges: list[dict[str, float]]) -> None:
        while True:
            with contextlib.suppress(OptistackError):
                gauges.append(read_gauges(await asyncio.to_thread(pages, self._counters)))
            await asyncio.sleep(GAUGES_EVERY_S)

    async def _alive(self, url: str) -> str:
        """``""`` when somebody takes connections at ``url``, else why the server is gone."""
        there = await asyncio.to_thread(takes_connections, url, os.environ.get(API_KEY_VARIABLE))
        return "" if there else f"No engine answers at {without_login(url)}."
