"""Asks each replica whether it is well, all the time, and at once when a request to it has failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic

from optistack_routing.fleet.roster import Health, Member, Roster
from optistack_routing.http.client import ClientTLS, get

REFUSALS = 2
"""Refused probes in a row, without a request under way, after which a replica's process is taken to be gone."""


@dataclass
class Probes:
    """``GET path`` at every replica each ``every_s``; one that fails ``failures`` times in a row is not used."""

    roster: Roster
    path: str = "/health"
    every_s: float = 5.0
    timeout_s: float = 5.0
    failures: int = 2
    tls: ClientTLS | None = None
    authorization: bytes | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def tick(self, now_s: float) -> None:
        members = self.roster.members
        for name in [name for name in self._due if name not in members]:
            del self._due[name]
        for name, member in members.items():
            if now_s >= self._due.get(name, 0.0):
                self.ask(member)

    def ask(self, member: Member) -> None:
        """Probe now, unless a probe is under way."""
        if member.name in self._tasks or self.roster.members.get(member.name) is not member:
            return
        wait_s = self.every_s if member.health is Health.UP else min(1.0, self.every_s)
        self._due[member.name] = monotonic() + wait_s
        task = asyncio.get_running_loop().create_task(self._probe(member))
        self._tasks[member.name] = task
        task.add_done_callback(lambda done: self._tasks.pop(member.name, None))

    async def _probe(self, member: Member) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                status, _ = await get(member.address, self.path, tls=self.tls, authorization=self.authorization)
        except TimeoutError:
            self._failed(member, f"no answer to {self.path} within {self.timeout_s:g} s")
        except Exception as error:  # a name that cannot even be encoded is one
            if _refused(error):
                self._refused(member)
            else:
                self._failed(member, str(error) or repr(error))
        else:
            if status == 200:
                member.failed_probes = member.refused_probes = 0
                self.roster.set_health(member, Health.UP, monotonic())
            else:
                self._failed(member, f"{self.path} answers {status}")

    def _refused(self, member: Member) -> None:
        """It gets nothing from now on. Its KV is forgotten once that was no accident of a full backlog."""
        member.failed_probes += 1
        member.refused_probes += 1
        gone = member.refused_probes >= REFUSALS and not member.out
        health = Health.DOWN if gone or member.health is Health.DOWN else Health.FAILING
        self.roster.set_health(member, health, monotonic(), "connection refused")

    def _failed(self, member: Member, error: str) -> None:
        member.failed_probes += 1
        member.refused_probes = 0
        if member.failed_probes >= self.failures or member.health is Health.UNKNOWN:
            self.roster.set_health(member, Health.FAILING, monotonic(), error)
        else:
            member.error = error

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refused(error: Exception) -> bool:
    """Whether nothing listens there. With several addresses there is one error, told by its text."""
    return isinstance(error, ConnectionRefusedError) or "Connection refused" in str(error)
