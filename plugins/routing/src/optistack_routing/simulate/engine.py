"""One replica of the simulation: prefill one after another, decode together, a prefix cache that evicts.

Simpler than an engine in three ways that leave its shape: a stream's speed is fixed when its first token is out, from
the requests that run then; prefill does not slow decode down; and what an answer adds to the cache is left out, so that
the next turn computes it again under every policy alike.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optistack_routing.policy.base import Replica

if TYPE_CHECKING:
    from optistack_routing.simulate.session import Flight, Stream


@dataclass(frozen=True, slots=True)
class EngineModel:
    """``token_s`` + ``token_load_s`` * running is the time of an output token: 15 ms at five requests by default.

    ``kv_tokens`` is the KV pool. The default is about what the sessions of a replica need at the target load, so that
    second copies push something out.
    """

    prefill_tokens_per_s: float = 20_000.0
    token_s: float = 0.010
    token_load_s: float = 0.001
    overhead_s: float = 0.05
    kv_tokens: int = 2_500_000
    max_running: int = 64

    def decode_s(self, output_tokens: int, running: int) -> float:
        return output_tokens * (self.token_s + self.token_load_s * running)


@dataclass(slots=True, eq=False)
class Held:
    """A stream's prefix in the cache: as of which turn, how much, and how many running requests use it."""

    turn: int
    tokens: int
    users: int = 0


@dataclass(slots=True, eq=False)
class Engine:
    """``replica`` is what the router sees of it."""

    model: EngineModel
    replica: Replica
    index: int
    prefill_free_s: float = 0.0
    running: int = 0
    pinned_tokens: int = 0
    held_tokens: int = 0
    cache: OrderedDict[Stream, Held] = field(default_factory=OrderedDict)
    waiting: deque[Flight] = field(default_factory=deque)

    def has_room(self, flight: Flight) -> bool:
        """Whether the request can start: its KV fits beside what runs, or nothing runs."""
        if not self.running:
            return True
        held = self.cache.get(flight.stream)
        known = held.tokens if held is not None and held.users else 0
        new = max(0, flight.turn.prompt_tokens - known)
        return self.running < self.model.max_running and self.pinned_tokens + new <= self.model.kv_tokens

    def start(self, flight: Flight, now_s: float) -> float:
        """Take the request in; seconds at which its first token is out. Sets what it found in the cache.

        The prefix counts as held from now on: what comes later waits behind its prefill anyway.
        """
        stream, prompt = flight.stream, flight.turn.prompt_tokens
        held = self.cache.get(stream)
        if held is None:
            held = self.cache[stream] = Held(flight.number, 0)
        else:
            self.cache.move_to_end(stream)
            flight.cached_tokens = min(held.tokens, stream.common_tokens(held.turn, flight.number))
        if held.users:
            self.pinned_tokens -= held.tokens
        if flight.number >= held.turn or not held.users:
            self.held_tokens += prompt - held.tokens
            held.turn, held.tokens = flight.number, prompt
        held.users += 1
        self.pinned_tokens += held.tokens
        self.running += 1
        if self.held_tokens > self.model.kv_tokens:
            self._evict()
        uncached = prompt - flight.cached_tokens
        begin = max(now_s, self.prefill_free_s)
        self.prefill_free_s = begin + uncached / self.model.prefill_tokens_per_s
        self._report()
        return self.prefill_free_s + self.model.overhead_s

    def end(self, flight: Flight) -> None:
        """The request is answered; its prefix stays until something needs the room."""
        held = self.cache[flight.stream]
        held.users -= 1
        self.running -= 1
        if not held.users:
            self.pinned_tokens -= held.tokens
        self._report()

    def _evict(self) -> None:
        """Least recently used prefixes first, each from its end, as the blocks of a pool go."""
        for stream, held in list(self.cache.items()):
            if held.users:
                continue
            gone = min(held.tokens, self.held_tokens - self.model.kv_tokens)
            held.tokens -= gone
            self.held_tokens -= gone
            if not held.tokens:
                del self.cache[stream]
            if self.held_tokens <= self.model.kv_tokens:
                return

    def _report(self) -> None:
        self.replica.kv_utilisation = min(1.0, self.pinned_tokens / self.model.kv_tokens)
