"""The replicas that the router knows of: where each is, whether it may be used, and why not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from optistack.errors import InputError
from optistack_routing.fleet.address import Address, read_address
from optistack_routing.fleet.circuit import Breaker, Circuit
from optistack_routing.policy.base import Replica
from optistack_routing.policy.ledger import Ledger

log = logging.getLogger("optistack.route")


class Source(StrEnum):
    """Who named a replica; a source takes away only what it has brought."""

    CONFIG = "config"
    FILE = "file"
    DNS = "dns"
    ADMIN = "admin"


class Health(StrEnum):
    UNKNOWN = "unknown"  # not asked yet
    UP = "up"
    FAILING = "failing"  # it does not answer its health check; its cache may well be there
    DOWN = "down"  # nothing listens there: its process is gone, and its cache with it


@dataclass(slots=True)
class Member:
    """A replica and what keeps requests from it. ``replica`` is its row in the ledger, where it has one.

    ``counted_tokens`` is its own count of prompt tokens when it was last read, which only a restart makes fall.
    ``refused_probes`` is how many of its last probes in a row found nobody listening.

    ``draining``  it gets no new requests; ``leaving`` and it is removed once it has none
    """

    address: Address
    source: Source
    breaker: Breaker
    health: Health = Health.UNKNOWN
    draining: bool = False
    leaving: bool = False
    drained_by_s: float = float("inf")
    failed_probes: int = 0
    refused_probes: int = 0
    error: str = ""
    replica: Replica | None = None
    out: int = 0
    counted_tokens: float = 0.0

    @property
    def name(self) -> str:
        return self.address.url

    @property
    def accepts(self) -> bool:
        return self.health is Health.UP and not self.draining and self.breaker.accepts


@dataclass
class Roster:
    """``changed`` is called when a replica may have begun to accept requests, ``joined`` and ``left`` with its name.

    ``is_own`` tells the router's own addresses.
    """

    ledger: Ledger
    new_breaker: Callable[[], Breaker]
    checks_health: bool = True
    members: dict[str, Member] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    probe: Callable[[Member], None] = lambda member: None
    joined: Callable[[str], None] = lambda name: None
    left: Callable[[str], None] = lambda name: None
    is_own: Callable[[Address], bool] = lambda address: False

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.members.values()))

    def add(self, url: str, source: Source, now_s: float) -> Member:
        """Take a replica in; one that is known already stays as it is, and stops leaving. Raises InputError, for the
        router's own address too: its requests would go round in a circle.
        """
        address = read_address(url)
        if self.is_own(address):
            raise InputError(f"{url} is where this router itself listens, and no replica.", fix="Give the engine's.")
        known = self.members.get(address.url)
        if known is not None:
            if known.leaving:
                known.draining = known.leaving = False
                self.settle(known, now_s)
            return known
        member = self.members[address.url] = Member(address, source, self.new_breaker())
        log.info("replica %s joins (%s)", member.name, source)
        self.joined(member.name)
        if self.checks_health:
            self.probe(member)
        else:
            self.set_health(member, Health.UP, now_s)
        return member

    def get(self, url: str) -> Member:
        """Raises InputError for a replica that is not there."""
        member = self.members.get(read_address(url).url)
        if member is None:
            raise InputError(f"There is no replica {url}.", fix="The list of replicas says which there are.")
        return member

    def drain(self, member: Member, now_s: float, *, leave: bool = False, within_s: float | None = None) -> None:
        """Give it no new requests; with ``leave`` remove it when its last has ended, or after ``within_s``."""
        member.draining = True
        member.leaving = member.leaving or leave
        if within_s is not None:
            member.drained_by_s = now_s + within_s
        log.info("replica %s drains%s", member.name, ", then leaves" if leave else "")
        self.settle(member, now_s)
        self.tick_member(member, now_s)

    def resume(self, member: Member, now_s: float) -> None:
        member.draining = member.leaving = False
        member.drained_by_s = float("inf")
        self.settle(member, now_s)

    def remove(self, member: Member, now_s: float) -> None:
        """Forget it now. Its requests go on to their end; none is retried there."""
        if self.members.get(member.name) is member:
            del self.members[member.name]
            self.ledger.leave(member.name, now_s)
            member.replica = None
            member.draining = True
            log.info("replica %s has left", member.name)
            self.left(member.name)

    def set_health(self, member: Member, health: Health, now_s: float, error: str = "") -> None:
        member.error = error
        if health is member.health:
            return
        log.info("replica %s is %s%s", member.name, health, f": {error}" if error else "")
        if health is Health.UP and member.health is Health.DOWN:
            member.breaker.reset()
        member.health = health
        if health is Health.DOWN and member.replica is not None:
            # Whatever comes back at this address begins with an empty cache: it is a new replica to the policy.
            self.ledger.leave(member.name, now_s)
            member.replica = None
        self.settle(member, now_s)

    def restarted(self, member: Member, now_s: float) -> None:
        """Another process answers at its address: the cache is empty, and it is a new replica to the policy."""
        log.info("replica %s has been restarted", member.name)
        if member.replica is not None:
            self.ledger.leave(member.name, now_s)
            member.replica = None
        self.settle(member, now_s)

    def settle(self, member: Member, now_s: float) -> None:
        """Bring the ledger's view of ``member`` up to date."""
        accepts = member.accepts
        if member.replica is None and accepts and self.members.get(member.name) is member:
            member.replica = self.ledger.join(member.name, now_s)
            member.replica.accepts = False
        if member.replica is not None and member.replica.accepts is not accepts:
            member.replica.accepts = accepts
            if accepts:
                self.changed()

    def tick(self, now_s: float) -> None:
        for member in self:
            self.tick_member(member, now_s)

    def tick_member(self, member: Member, now_s: float) -> None:
        if member.leaving and (member.out == 0 or now_s >= member.drained_by_s):
            self.remove(member, now_s)
            return
        if member.breaker.state is Circuit.OPEN:
            member.breaker.tick(now_s)
            self.settle(member, now_s)
