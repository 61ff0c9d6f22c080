"""What is under way in a simulation: sessions, and their requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from optistack_routing.policy.ledger import Lease
from optistack_routing.simulate.engine import Engine
from optistack_routing.simulate.workload import Script, Turn


@dataclass(slots=True, eq=False)
class Stream:
    """A session, or a sub-agent of one: prompts that each grow out of the one before.

    ``name``       what the router is told
    ``number``     its next turn, or the one under way
    ``open``       requests and sub-agents that the next turn waits for
    ``parent``     whose turn waits for this sub-agent
    ``served_on``  by the index of a replica, the newest turn that it was sent
    """

    name: str
    script: Script
    width: int = 1
    number: int = 0
    first_turn: int = 0
    open: int = 0
    parent: Stream | None = None
    served_on: dict[int, int] = field(default_factory=dict)

    def common_tokens(self, earlier: int, later: int) -> int:
        """The head that the prompts of two turns have in common."""
        turns = self.script.turns
        if earlier == later:
            return turns[later].prompt_tokens
        low, high = (earlier, later) if earlier < later else (later, earlier)
        return min([turn.shared_tokens for turn in turns[low + 1 : high + 1]])

    def new_tokens(self) -> int:
        """Tokens of the turn under way that no replica can hold."""
        turn = self.script.turns[self.number]
        return turn.prompt_tokens if self.number == self.first_turn else turn.prompt_tokens - turn.shared_tokens


@dataclass(slots=True, eq=False)
class Flight:
    """One request, from its arrival at the router to its last token.

    ``copy``  0 for the first of a wide turn's requests, so that the tokens which are new to the fleet count once
    """

    stream: Stream
    turn: Turn
    number: int
    copy: int
    lease: Lease
    engine: Engine
    arrived_s: float
    cached_tokens: int = 0
