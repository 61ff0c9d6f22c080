"""What a replica's prefix cache still holds, followed from the outside."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Home:
    """One session's KV on one replica.

    ``tokens``     the newest prefix that was sent there, less what the cache is believed to have evicted since
    ``in_flight``  requests of the session that are there now
    """

    tokens: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Shadow:
    """The least recently used prefixes go first, from their ends, once the pool of ``kv_tokens`` is full.

    This is what both engines do with blocks that no running request needs. One operation is O(1) amortised, and there
    are never more entries than prefixes in the pool.
    """

    kv_tokens: int
    held: OrderedDict[Home, None] = field(default_factory=OrderedDict)
    total_tokens: int = 0

    def use(self, home: Home, tokens: int) -> None:
        """``home`` now holds ``tokens``, as the most recently used."""
        if home in self.held:
            self.held.move_to_end(home)
            self.total_tokens -= home.tokens
        else:
            self.held[home] = None
        home.tokens = tokens
        self.total_tokens += tokens
        if not tokens:
            del self.held[home]
        while self.total_tokens > self.kv_tokens and len(self.held) > 1:
            oldest = next(iter(self.held))
            if oldest.in_flight:  # running requests keep their blocks
                self.held.move_to_end(oldest)
                if all(other.in_flight for other in self.held):
                    return
                continue
            gone = min(oldest.tokens, self.total_tokens - self.kv_tokens)
            oldest.tokens -= gone
            self.total_tokens -= gone
            if not oldest.tokens:
                del self.held[oldest]
