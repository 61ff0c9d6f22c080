"""Precise mode of a router: an index that follows the replicas of the configuration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from optistack.errors import InputError
from optistack_routing.fleet.address import read_address
from optistack_routing.fleet.roster import Roster
from optistack_routing.router.config import Precise

if TYPE_CHECKING:
    from optistack_routing.kv_index.overlap import Overlap


SWITCH_S = 0.0005
"""How long a thread may keep the event loop from the interpreter, by default 5 ms: chunks of other requests wait for as
long. Measured while predictions ran one after the other, a callback was late by 0.8 ms in the median instead of 4 to 15
(benchmarks/precise.py)."""


def open_overlap(precise: Precise) -> Overlap:
    """Raises InputError when a package is missing, or the checkpoint's tokenizer cannot be used."""
    try:
        from optistack_routing.kv_index.overlap import PreciseOverlap
    except ModuleNotFoundError as error:
        raise InputError(
            f"Precise mode needs the package {error.name}.",
            fix="In a clone of optistack, run: pip install './plugins/routing[precise]'",
        ) from None
    sys.setswitchinterval(SWITCH_S)
    overlap = PreciseOverlap(precise.checkpoint, precise.page_tokens, dropped_pages=precise.dropped_pages)
    for url, (events, replay) in precise.events.items():
        overlap.join(read_address(url).url, events, replay)
    return overlap


def follow(roster: Roster, overlap: Overlap, precise: Precise) -> None:
    """Have the index forget a replica that leaves the fleet, whoever sent it away, and follow it when it is back."""
    known = {read_address(url).url: addresses for url, addresses in precise.events.items()}
    gone: set[str] = set()

    def left(name: str) -> None:
        if name in known:
            gone.add(name)
            overlap.leave(name)

    def joined(name: str) -> None:
        if name in gone:
            gone.remove(name)
            overlap.join(name, *known[name])

    roster.left, roster.joined = left, joined
