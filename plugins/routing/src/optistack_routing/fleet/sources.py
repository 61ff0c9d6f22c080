"""Replicas that are named outside of the router: in a file, or in DNS."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from optistack.errors import InputError
from optistack_routing.fleet.address import read_address
from optistack_routing.fleet.roster import Roster, Source

log = logging.getLogger("optistack.route")


@dataclass
class Named:
    """What a source named last. Only what changes in it is applied, so that what an admin has removed stays removed."""

    roster: Roster
    source: Source
    drain_s: float
    urls: frozenset[str] = frozenset()

    def now_names(self, urls: frozenset[str], now_s: float) -> None:
        for url in sorted(urls - self.urls):
            try:
                self.roster.add(url, self.source, now_s)
            except InputError as error:  # the others are replicas all the same
                log.warning("not taken in: %s", error)
        for url in sorted(self.urls - urls):
            member = self.roster.members.get(url)
            if member is not None and member.source is self.source:
                self.roster.drain(member, now_s, leave=True, within_s=self.drain_s)
        self.urls = urls


@dataclass
class WatchedFile:
    """One URL a line; ``#`` begins a comment. Read again when its time or size has changed, renamed files included."""

    path: Path
    named: Named
    _seen: tuple[int, int, int] | None = field(default=None, init=False)
    _was_empty: bool = field(default=False, init=False)

    def start(self, now_s: float) -> None:
        """Raises InputError for a file that is not there, or names something else than replicas."""
        try:
            self._read(now_s)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}.", fix="Write one URL a line.") from None

    def look(self, now_s: float) -> None:
        """Keeps what was named before when the file is gone or wrong: a fleet must not end with a typing error."""
        try:
            self._read(now_s)
        except (OSError, InputError) as error:
            log.warning("the replicas stay as they are: %s", error)

    def _read(self, now_s: float) -> None:
        stat = self.path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._seen:
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if not text and self.named.urls and not self._was_empty:
            self._was_empty = True  # most likely it is being written; if not, it is empty at the next look as well
            return
        self._was_empty = False
        self._seen = stamp
        lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
        self.named.now_names(frozenset(read_address(line).url for line in lines if line), now_s)


@dataclass
class ResolvedName:
    """Every address that ``NAME:PORT`` has is a replica, as with a headless service of Kubernetes."""

    text: str
    named: Named
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        self._address = read_address(self.text)

    async def look(self) -> None:
        """Keeps what was named before when the name does not resolve."""
        address = self._address
        try:
            async with asyncio.timeout(self.timeout_s):
                found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, proto=6)
        except (OSError, TimeoutError) as error:
            log.warning("the replicas stay as they are: %s does not resolve: %s", address.host, error or "timeout")
            return
        scheme = "https" if address.tls else "http"
        hosts = {str(entry[4][0]) for entry in found}
        urls = {
            f"{scheme}://[{host}]:{address.port}" if ":" in host else f"{scheme}://{host}:{address.port}"
            for host in hosts
        }
        self.named.now_names(frozenset(urls), monotonic())
