"""Generation by the toy model: drafting, sampling, scripted answers, and the faults that live there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.toy import EOS, VOCABULARY, Logits, ToyModel, log_softmax

DRAFT_TOKENS = 4
SCRIPT_BOOST = 60.0
WRONG_RATE = {Fault.ACCEPTS_WRONG_1_PERCENT: 0.01, Fault.ACCEPTS_WRONG_01_PERCENT: 0.001}
PRINTABLE = np.array([10, *range(32, 127)])


@dataclass
class Step:
    """One emitted token. ``logprobs`` [vocabulary] is the model's distribution there."""

    token: int
    logprobs: Logits


@dataclass
class Counters:
    """What the metrics page shows."""

    drafts: int = 0
    accepted: int = 0
    running: int = 0
    prompted: int = 0


@dataclass
class Decoder:
    """Generates on ``model``. ``seed`` decides where faults that have a rate strike."""

    model: ToyModel
    seed: int
    counters: Counters = field(default_factory=Counters)

    def steps(
        self,
        ids: Sequence[int],
        sums: list[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int | None,
        script: Sequence[int] | None,
        ignore_eos: bool,
        warm: bool = False,
    ) -> Iterator[Step]:
        """Tokens after ``ids``. ``script`` is what greedy decoding shall say, then the end of the text; ``warm``
        whether part of the prompt came from the cache."""
        text = list(ids)
        drawn = np.random.default_rng(_hash(seed)) if seed is not None else np.random.default_rng()
        strikes = np.random.default_rng(_hash((self.seed, tuple(ids), seed)))
        for number in range(max_tokens):
            logits = self.model.logits(text, sums)
            if script is not None:
                wanted = script[number] if number < len(script) else EOS
                logits = logits.copy()
                logits[wanted] += SCRIPT_BOOST
            elif ignore_eos:
                logits[EOS] = -1e9
            logprobs = log_softmax(logits)
            token = self._pick(logits, logprobs, number, temperature, drawn, scripted=script is not None)
            token = self._accept(token, number, strikes, scripted=script is not None)
            no_draft = warm and self.model.fault is Fault.COLD_DRAFTS
            if no_draft or number % DRAFT_TOKENS == 0:
                self.counters.drafts += 1
            else:
                self.counters.accepted += 1
            yield Step(token, logprobs)
            if token == EOS and not ignore_eos:
                return
            text.append(token)
            self.model.extend(text, sums)

    def _pick(
        self,
        logits: Logits,
        logprobs: Logits,
        number: int,
        temperature: float,
        drawn: np.random.Generator,
        *,
        scripted: bool,
    ) -> int:
        fault = self.model.fault
        if temperature <= 0 or scripted:
            return int(np.argmax(logits))
        uniform = drawn.random()
        if fault is Fault.GREEDY_SAMPLING and number % DRAFT_TOKENS == DRAFT_TOKENS - 1:
            return int(np.argmax(logits))
        cumulative = np.cumsum(np.exp(log_softmax(logits / temperature)))
        return min(int(np.searchsorted(cumulative, uniform * cumulative[-1])), VOCABULARY - 1)

    def _accept(self, token: int, number: int, strikes: np.random.Generator, *, scripted: bool) -> int:
        fault = self.model.fault
        strike = strikes.random()
        if scripted or number == 0:
            return token
        if fault is Fault.WRONG_BONUS and number % DRAFT_TOKENS == DRAFT_TOKENS - 1:
            return int(np.argmax(self.model.table[(token * 131 + number) % len(self.model.table)]))
        if strike < WRONG_RATE.get(fault, 0.0):
            return int(strikes.choice(PRINTABLE))
        return token


def _hash(value: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big")
